/* csrc/flag.h: one poster, who may die at any step, and one waiter that times out. Two places are
   each written by one side: the position of posts, and how many of them the waiter has cleared.

   Checked: no wake-up is lost (no invalid end state); every post is seen by exactly one clear(),
   whatever times out; what the waiter reads is not overwritten before it clears; what a now dead
   poster posted comes before its loss; set() makes a system call only for a parking of its own.
   Not modelled: memory orders (every access is sequentially consistent), the wrap of positions,
   claiming the waiter's place, a poster that is replaced (clear_lost).

   Mutations, besides those of position_body.pml, which holds the waiting:
     MUT_SET_UNCLEARED    set() does not look whether the last post has been cleared
     MUT_CLEAR_EARLY      clear() before reading: the next post overwrites what is being read

   spin -a flag.pml && cc -O2 -DSAFETY -o pan pan.c && ./pan -m100000 */
#ifndef ALL
#define ALL 3
#endif
#ifndef STIRS
#define STIRS 2
#endif

#define AT_REST(p, wanted, me) false    /* the poster always comes, or its reaper */

#include "position_body.pml"

Position posts;
byte cleared;
byte contents;      /* what the post is about */
bool dead;

proctype poster() {
  byte n, aim;
  do
  :: n == ALL -> break
  :: else ->
#ifndef MUT_SET_UNCLEARED
     cleared == AT(posts);      /* told by other means that it may post again */
#endif
     n++;
     contents = n;
     post(posts, 1, true)
  od;
  goto finished;
died:
  dead = true;
  mark_lost(posts);
finished:
  skip
}

proctype waiter() {
  byte read;
  WAITER;
  do
  :: cleared == ALL -> break
  :: else ->
     wait_until(posts, cleared + 1, 1, true);
     if
     :: outcome == Ready ->
#ifdef MUT_CLEAR_EARLY
        cleared = AT(posts);
        read++;
        assert(contents == read)
#else
        read++;
        assert(contents == read);
        cleared = AT(posts)
#endif
     :: outcome == Loss -> assert(dead && AT(posts) == cleared); break
     :: outcome == TimedOut      /* and waits again */
     fi
  od;
  assert(read == cleared);
rest:
  skip
}

init { atomic { run poster(); run waiter() } }
