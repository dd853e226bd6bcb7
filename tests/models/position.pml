/* csrc/position.h: N posters, each of whom may die at any step or have no more to post.
   Without MANY (Position): one waiter, whose target is a word of its own. It times out, and waits
   again for less or for more.
   With MANY (OpenPosition): two waiters with targets of their own; a poster rings if it finds the
   word armed.

   Checked: no process is asleep in the end whose target was reached, or a loss not told (no invalid
   end state); a wait that ends well has come far enough, one that ends with a loss has a death to
   tell; posters make one system call for an arming.
   Not modelled: memory orders (every access is sequentially consistent), the wrap of positions,
   claiming the waiter's place.

   Mutations: MUT_... of position_body.pml, which holds the protocol.

   spin -a [-DMANY] position.pml && cc -O2 -DSAFETY -o pan pan.c && ./pan -m100000 */
#ifndef N
#define N 2
#endif
#ifndef POSTS
#define POSTS 2     /* of each poster, at most */
#endif
#define ALL (N * POSTS)

#ifdef MANY
#define ONE false
#else
#define ONE true
#endif

byte deaths;        /* marked */
byte ended;         /* posters, or their reapers */

/* A sleeper nothing more can come for. */
#define AT_REST(p, wanted, me) (ended == N && !OVER(p, wanted))

#include "position_body.pml"

Position position;

proctype poster() {
  byte n, aim;
  do
  :: n < POSTS ->
     n++;
#ifdef MANY
     if
     :: ADVANCE_UNARMED(position, 1)
     :: ADVANCE_ARMED(position, 1); wake_if_armed(position, true)
     :: goto died
     fi
#else
     post(position, 1, true)
#endif
  :: goto finished
  od;
died:
  deaths++;
  mark_lost(position);
finished:
  ended++
}

proctype waiter(byte me; byte wanted) {
  WAITER;
  do
  :: wait_until(position, wanted, me, ONE);
     if
     :: outcome == Ready -> assert(AT(position) >= wanted); break
     :: outcome == Loss -> assert(deaths > 0); break
     :: outcome == TimedOut -> select(wanted : 1 .. ALL)
     fi
  od;
rest:
  skip
}

init {
  byte i;
  atomic {
    for (i : 0 .. N - 1) { run poster() }
#ifdef MANY
    run waiter(1, 1);
    run waiter(2, 2)
#else
    run waiter(1, ALL)
#endif
  }
}
