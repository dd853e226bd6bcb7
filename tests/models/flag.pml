/* csrc/flag.h: one poster, who may die at any step, a reaper, and one waiter that parks.

   Checked: no wake-up is lost (no invalid end state); every post is seen by exactly one clear(),
   whatever times out; a wait is never satisfied by what an earlier one was about; what a now dead
   poster posted comes before its loss; set() makes a system call only for a parking of its own.
   Not modelled: memory orders (every access is sequentially consistent), the wrap of the
   generation, claiming the waiter's place, a poster that is replaced (clear_lost).

   A step is one atomic access and the local computing that goes with it.

   Mutations, each of which must be found wrong:
     MUT_PARK_BLIND       parks by fetch_or: the post between the look and the parking is missed
     MUT_SET_BY_STORE     set() loads and stores: the parking between the two is missed
     MUT_LOST_IF_PARKED   mark_lost() wakes only if parked: the dead may have taken that bit
     MUT_CLEAR_BY_STORE   clear() loads and stores: the loss between the two is forgotten
     MUT_UNPARK_BY_STORE  the time-out stores what it parked from: the post in between is undone
     MUT_LOST_FIRST       the waiter tells the loss before it looks for the post
     MUT_CLEAR_EARLY      clear() before reading: the next post overwrites what is being read
     MUT_WAKE_ALWAYS      set() makes the system call whoever sleeps

   spin -a flag.pml && cc -O2 -DSAFETY -o pan pan.c && ./pan -m100000 */
#ifndef GENERATIONS
#define GENERATIONS 3
#endif
#ifndef STIRS
#define STIRS 2     /* returns from the futex that no wake caused: deadline, signal, no reason */
#endif

#define SET 1
#define PARKED 2
#define LOST 4
#define GENERATION 8

mtype = { Ready, TimedOut, Loss };

byte word;
bool asleep;
byte stirs = STIRS;
byte contents;      /* what the post is about */
bool dead;

byte posted;        /* ghosts */
byte cleared;
byte owed;          /* parkings not yet undone or woken */

proctype poster() {
  byte w, g;
  bool done;
  {
    do
    :: g == GENERATIONS -> break
    :: else ->
       !(word & SET);       /* told by other means that it may post again */
       g++;
       contents = g;
       w = word;
       done = false;
       do
       :: done -> break
       :: else ->
#ifdef MUT_SET_BY_STORE
          d_step { word = (w & ~PARKED) | SET; posted++; done = true }
#else
          d_step {
            if
            :: word == w -> word = (w & ~PARKED) | SET; posted++; done = true
            :: else -> w = word
            fi
          }
#endif
       od;
       if
#ifndef MUT_WAKE_ALWAYS
       :: !(w & PARKED)
#endif
       :: else -> d_step { assert(owed > 0); owed--; asleep = false }
       fi
    od
  } unless { dead }
}

proctype reaper() {
  byte w;
  if
  :: dead = true;
     d_step { w = word; word = w | LOST };
#ifdef MUT_LOST_IF_PARKED
     if :: w & PARKED -> asleep = false :: else fi
#else
     asleep = false
#endif
  :: skip
  fi
}

inline park() {
  w = word;
  if
  :: w & (SET | LOST)
  :: else ->
#ifdef MUT_PARK_BLIND
     d_step { owed++; w = word & ~PARKED; word = w | PARKED; parked = true };
#else
     d_step {
       parked = (word == w);
       if :: parked -> word = w | PARKED; owed++ :: else fi
     };
#endif
     if
     :: !parked
     :: else ->
        d_step { slept = (word == (w | PARKED)); asleep = slept };
        if
        :: !slept || !asleep
        :: d_step { slept && stirs > 0 -> stirs--; asleep = false }
        :: d_step { slept && stirs > 0 -> stirs--; asleep = false; late = true }
        fi;
#ifdef MUT_UNPARK_BY_STORE
        d_step { owed = owed - (word & PARKED) / PARKED; word = w };
#else
        d_step { owed = owed - (word & PARKED) / PARKED; word = word & ~PARKED };
#endif
     fi
  fi
}

inline wait_until() {
  late = false;
  do
#ifdef MUT_LOST_FIRST
  :: word & LOST -> outcome = Loss; break
#endif
  :: word & (SET | LOST) -> outcome = Ready; break
  :: else ->
     if
     :: late -> outcome = TimedOut; break
     :: else -> park()
     fi
  od;
  if
  :: outcome == Ready && !(word & SET) -> outcome = Loss
  :: else
  fi
}

proctype waiter() {
  byte w;
  bool parked, slept, late;
  mtype outcome;
  do
  :: cleared == GENERATIONS -> break
  :: else ->
     wait_until();
     if
     :: outcome == Ready ->
#ifndef MUT_CLEAR_EARLY
        assert(contents == cleared + 1);
#endif
#ifdef MUT_CLEAR_BY_STORE
        w = word;
        d_step { word = w + GENERATION - SET; cleared++ };
#else
        d_step { assert(word & SET); word = word + GENERATION - SET; cleared++ };
#endif
#ifdef MUT_CLEAR_EARLY
        assert(contents == cleared);
#endif
        assert(posted >= cleared)
     :: outcome == Loss -> assert(dead && posted == cleared); break
     :: outcome == TimedOut      /* and waits again */
     fi
  od
}

init { atomic { run poster(); run reaper(); run waiter() } }
