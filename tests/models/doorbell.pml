/* csrc/doorbell.h: N members, each of whom posts POSTS times and may die at any step; one waiter
   that wants K of those who still owe something, takes what it found, and waits again.

   Checked: the waiter is never late (no invalid end state), whoever dies where; every post is taken
   exactly once, a dead author's too; each loss is told exactly once, and no more is heard of that
   member.
   Not modelled: memory orders (every access is sequentially consistent), the wrap of the count, the
   order by posted_at, revive, a second waiter, more than one reaper for a death.

   The count of posts is that of position_body.pml, whose mutations hold here too. And:
     MUT_FLAG_AFTER_COUNT    a member counts first: the scan after the wake-up does not see it
     MUT_COUNT_AFTER_SCAN    the count is read after the scan: the post in between is not awaited
     MUT_TARGET_IGNORES_SCAN waits for K more posts, whoever was ready already
     MUT_CLEAR_AFTER_SCAN    the loss between the scan and the clearing is forgotten
     MUT_REAPER_NO_WAKE      the reaper marks the member and leaves the waiter asleep
     MUT_LOST_BY_STORE       the reaper's mark wipes out what the dead one had posted
     MUT_TAKE_BY_STORE       taking wipes out a loss that has not been told
     MUT_NOT_TOLD            the waiter does not mark what it has told

   spin -a [-DN=3] doorbell.pml && cc -O2 -DSAFETY -o pan pan.c && ./pan -m100000 */
#ifndef N
#define N 2
#endif
#ifndef K
#define K 2
#endif
#ifndef POSTS
#define POSTS 2     /* of each member */
#endif

#ifndef DEATHS
#define DEATHS N    /* at most */
#endif
#define MORTAL (i < DEATHS)

#define AT_REST(p, wanted, me) false      /* the waiter never wants more than will come */

#include "position_body.pml"

#define READY 1
#define GONE 2      /* kLost */
#define TOLD 4

Position posts;
byte state[N];
byte posted[N];     /* ghost */

proctype member(byte i) {
  byte n, aim;
  do
  :: n < POSTS ->
#ifdef MUT_FLAG_AFTER_COUNT
     state[i] == 0;
     post(posts, 1, MORTAL);
#endif
     if
     :: d_step { state[i] == 0 -> state[i] = READY; posted[i]++; n++ }
     :: MORTAL -> goto died
     fi;
#ifndef MUT_FLAG_AFTER_COUNT
     post(posts, 1, MORTAL)
#endif
  :: else -> goto finished
  od;
died:
#ifdef MUT_LOST_BY_STORE
  state[i] = GONE;
#else
  state[i] = state[i] | GONE;
#endif
#ifndef MUT_REAPER_NO_WAKE
  mark_lost(posts);
#endif
finished:
  skip
}

inline collect() {
  d_step { found = 0; lost = 0; n = 0; i = 0 };
  do
  :: i == N -> break
  :: d_step {
       i < N ->
       seen = state[i];
       if :: seen & READY -> found = found | (1 << i); n++ :: else fi
     };
     if
     :: (seen & GONE) && !(seen & TOLD) ->
        lost = lost | (1 << i);
#ifndef MUT_NOT_TOLD
        state[i] = state[i] | TOLD
#endif
     :: else
     fi;
     d_step { seen = 0; i++ }
  od;
  i = 0
}

inline doorbell_wait(want) {
  do
  ::
#ifndef MUT_CLEAR_AFTER_SCAN
     clear_lost(posts);
#endif
#ifndef MUT_COUNT_AFTER_SCAN
     count = AT(posts);
#endif
     collect();
#ifdef MUT_COUNT_AFTER_SCAN
     count = AT(posts);
#endif
#ifdef MUT_CLEAR_AFTER_SCAN
     clear_lost(posts);
#endif
     if
     :: lost != 0 -> outcome = Loss; break
     :: lost == 0 && n >= want -> outcome = Ready; break
     :: else
     fi;
#ifdef MUT_TARGET_IGNORES_SCAN
     n = 0;
#endif
     d_step { count = count + want - n; n = 0; found = 0 };
     wait_until(posts, count, 1, true);
     if
     :: outcome == TimedOut ->
        collect();
        if
        :: lost != 0 -> outcome = Loss
        :: lost == 0 && n >= want -> outcome = Ready
        :: else
        fi;
        break
     :: else
     fi
  od;
  count = 0
}

proctype waiter() {
  WAITER;
  byte count, seen, found, lost, n, i, want;
  byte taken[N];
  bool gone[N];
  do
  :: d_step {
       want = 0;
       for (i : 0 .. N - 1) {
         if
         :: !gone[i] && taken[i] < POSTS && want < K -> want++
         :: else
         fi
       }
       i = 0
     };
     if :: want == 0 -> break :: else fi;
     doorbell_wait(want);
     d_step {
       assert(outcome != Ready || n >= want);
       assert(outcome != Loss || lost != 0)
     };
     do
     :: i == N -> break
     :: else ->
        if
        :: found & (1 << i) ->
           d_step {
             assert((state[i] & READY) && !gone[i]);
#ifdef MUT_TAKE_BY_STORE
             state[i] = 0;
#else
             state[i] = state[i] & ~READY;
#endif
             taken[i]++
           }
        :: else
        fi;
        d_step {
          if
          :: lost & (1 << i) -> assert(!gone[i] && taken[i] == posted[i]); gone[i] = true
          :: else
          fi;
          i++
        }
     od;
     i = 0
  od;
rest:
  for (i : 0 .. N - 1) { assert(taken[i] == posted[i]) }
}

init {
  byte i;
  atomic {
    for (i : 0 .. N - 1) { run member(i) }
    run waiter()
  }
}
