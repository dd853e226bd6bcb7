/* csrc/position.h, for the models that include this. Not a model of its own.

   A word is what it is there: position * 4 | lost * 2 | armed. A step is one atomic access and the
   local computing that goes with it. Who is `mortal` may die at any step: it goes to its label
   `died`, where the reaper acts. Until it is marked, a dead poster is no other than one that
   dawdles. A sleeper that is AT_REST(position, wanted, me), to be defined before this is included,
   may go to its label `rest`: nothing more can come for it.

   Mutations, in any model that includes this:
     MUT_ARM_BLIND         arms by fetch_or: the advance between the look and the arming is missed
     MUT_ADVANCE_BLIND     looks whether a waiter is armed, then advances: the arming between the
                           two is missed
     MUT_TARGET_FIRST      reads the target, then advances: the next, smaller target is missed
     MUT_LOST_IF_ARMED     mark_lost() wakes only if armed: the dead may have taken that bit
     MUT_WAKE_TWICE        wake() looks at the bit and then clears it: two make the call
     MUT_SLEEP_DISARMED    sleeps on though a poster has taken the bit
     MUT_WAKE_ONE          wake() wakes one, and disarms for all
     MUT_WAKE_ALWAYS       post() makes the system call whoever sleeps
     MUT_DISARM_BY_STORE   the time-out stores what it armed from: the post in between is undone
     MUT_LOST_FIRST        the waiter tells the loss before it looks how far the position has come */
#ifndef STIRS
#define STIRS 1     /* returns from the futex that no wake caused: deadline, signal, no reason */
#endif

#define ARMED 1
#define LOST 2
#define UNIT 4

mtype = { Ready, TimedOut, Loss };

typedef Position {
  byte word;
  byte target;
  byte asleep;      /* the futex's queue: a bit for each waiter */
  byte owed         /* ghost: armings not yet undone or woken */
}

byte stirs = STIRS;

#define WAITER byte seen_word, aim; bool late; mtype outcome

#define AT(p) (p.word / UNIT)
#define OVER(p, wanted) ((p.word & LOST) || AT(p) >= (wanted))

/* advance(): one step, of which one of the two can be taken. */
#ifdef MUT_ADVANCE_BLIND
#define ADVANCE_UNARMED(p, by) !(p.word & ARMED) -> p.word = p.word + (by) * UNIT
#else
#define ADVANCE_UNARMED(p, by) d_step { !(p.word & ARMED) -> p.word = p.word + (by) * UNIT }
#endif
#define ADVANCE_ARMED(p, by) d_step { p.word & ARMED -> p.word = p.word + (by) * UNIT }

inline wake(p) {
  d_step {
    assert(p.owed > 0);
    p.owed--;
#ifdef MUT_WAKE_ONE
    p.asleep = p.asleep & (p.asleep - 1)
#else
    p.asleep = 0
#endif
  }
}

inline wake_if_armed(p, mortal) {
  if
  :: !(p.word & ARMED)
#ifdef MUT_WAKE_TWICE
  :: p.word & ARMED -> p.word = p.word & ~ARMED;
#else
  :: d_step { p.word & ARMED -> p.word = p.word & ~ARMED };
#endif
     if
     :: wake(p)
     :: mortal -> goto died
     fi
  :: mortal -> goto died
  fi
}

inline wake_if_reached(p, mortal) {
#ifndef MUT_TARGET_FIRST
  aim = p.target;
#endif
  if
  :: d_step { AT(p) < aim -> aim = 0 }
  :: d_step { AT(p) >= aim -> aim = 0 }; wake_if_armed(p, mortal)
  :: d_step { mortal -> aim = 0 }; goto died
  fi
}

inline post(p, by, mortal) {
#ifdef MUT_TARGET_FIRST
  aim = p.target;
#endif
  if
#ifdef MUT_WAKE_ALWAYS
  :: ADVANCE_UNARMED(p, by); wake(p)
#else
  :: ADVANCE_UNARMED(p, by)
#endif
  :: ADVANCE_ARMED(p, by); wake_if_reached(p, mortal)
  :: mortal -> goto died
  fi
}

inline mark_lost(p) {
  p.word = p.word | LOST;
#ifdef MUT_LOST_IF_ARMED
  wake_if_armed(p, false)
#else
  p.asleep = 0      /* always: the dead may have taken the armed bit and not made the wake */
#endif
}

inline clear_lost(p) { p.word = p.word & ~LOST }

/* Asleep until a wake, or for no reason; `late` if it was the deadline. */
inline futex_wait(p, wanted, me) {
  if
  :: !(p.asleep & me)
  :: d_step { stirs > 0 && (p.asleep & me) -> stirs--; p.asleep = p.asleep & ~me }
  :: d_step { stirs > 0 && (p.asleep & me) -> stirs--; p.asleep = p.asleep & ~me; late = true }
  :: AT_REST(p, wanted, me) -> goto rest
  fi
}

/* `me`: the waiter's bit in the queue. `one`: it is the only waiter. */
inline park(p, wanted, me, one) {
  if :: one -> p.target = wanted :: else fi;
  seen_word = p.word;
  if
  :: OVER(p, wanted)
  :: else ->
     if
#ifdef MUT_ARM_BLIND
     :: d_step {
          p.owed = p.owed + 1 - (p.word & ARMED);
          p.word = p.word | ARMED;
          seen_word = p.word
        };
#else
     :: p.word != seen_word
     :: d_step {
          p.word == seen_word ->
          p.owed = p.owed + 1 - (p.word & ARMED);
          p.word = p.word | ARMED;
          seen_word = p.word
        };
#endif
        do
        :: d_step { p.word == seen_word -> p.asleep = p.asleep | me };
           futex_wait(p, wanted, me);
           break
        :: d_step { p.word != seen_word -> seen_word = p.word };
           if
#ifdef MUT_SLEEP_DISARMED
           :: !OVER(p, wanted)
#else
           :: (seen_word & ARMED) && !OVER(p, wanted)
#endif
           :: else -> break
           fi
        od;
        if
#ifdef MUT_DISARM_BY_STORE
        :: one -> d_step { p.owed = p.owed - (p.word & ARMED); p.word = seen_word & ~ARMED }
#else
        :: one -> d_step { p.owed = p.owed - (p.word & ARMED); p.word = p.word & ~ARMED }
#endif
        :: else
        fi
     fi
  fi;
  seen_word = 0
}

inline wait_until(p, wanted, me, one) {
  do
#ifdef MUT_LOST_FIRST
  :: p.word & LOST -> outcome = Loss; break
#endif
  :: OVER(p, wanted) -> outcome = Ready; break
  :: else ->
     if
     :: late -> outcome = TimedOut; break
     :: else -> park(p, wanted, me, one)
     fi
  od;
  late = false;
  if
  :: outcome == Ready && AT(p) < (wanted) -> outcome = Loss
  :: else
  fi
}
