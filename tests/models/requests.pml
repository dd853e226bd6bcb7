/* pysampler/_actors/central.py: workers of one group ask for actions, and the parent answers. A
   worker may die at any step; another replaces it and goes on from the shared words. The doorbell
   and the flag are those of doorbell.pml and flag.pml, as a bit each: what they do is one step.

   Checked: a worker steps only with actions for its own last request; the parent writes no actions
   while a worker steps; every request of a worker that lives is answered (no invalid end state).
   Not modelled: several groups (they share nothing but the doorbell's wait) and memory orders (every
   access is sequentially consistent). A post of a bell or flag that is set already publishes
   nothing: for that the worker posts again, and the parent sets flags again, which no run here
   needs.

   Mutations:
     MUT_ANY_ANSWER       the worker takes a set flag for the answer to its own request
     MUT_FLAG_FIRST       the parent sets the flag before it answers
     MUT_ANSWERED_TWICE   the parent does not look whether a request has been answered

   spin -a requests.pml && cc -O2 -DSAFETY -o pan pan.c && ./pan -m100000 */
#ifndef ALL
#define ALL 3               /* requests, together */
#endif
#ifndef DEATHS
#define DEATHS 2
#endif
#ifndef EARLY
#define EARLY 2             /* time-outs of a worker that come before the answer */
#endif

byte asked, answered;       /* numbers of requests; each worker asks for the number after the last */
byte actions;               /* the number of the request that the actions in the frame are for */
byte acted;                 /* how many answers there were, to bound the run of a parent gone wrong */
bool bell, flag;            /* posted and not taken; set and not cleared */
bool to_set;                /* the parent has to set the flag, once it is cleared */
bool stepping;              /* the worker reads its actions */
bool done;
byte deaths;

#define MAY_DIE \
  if \
  :: deaths < DEATHS -> deaths++; stepping = false; goto died \
  :: true \
  fi

inline wait_answer() {
  do
  :: atomic { flag -> flag = false };
     MAY_DIE;
#ifdef MUT_ANY_ANSWER
     break
#else
     if
     :: answered == asked -> break
     :: else
     fi
#endif
  :: early < EARLY -> early++; repeat()     /* the wait times out at any moment, */
  :: timeout -> late++; assert(late < 4); repeat()   /* and when nothing else happens */
  od
}

inline repeat() {
  MAY_DIE;
  bell = true
}

proctype worker() {
  byte early, late;
born:
  early = 0;
  do
  :: asked == ALL -> break
  :: else ->
     MAY_DIE;
     asked++;
     MAY_DIE;
     bell = true;
     MAY_DIE;
     late = 0;
     wait_answer();
     stepping = true;
     assert(actions == asked);
     MAY_DIE;
     assert(actions == asked);
     stepping = false
  od;
  done = true;
  goto over;
died:
  goto born;
over:
  skip
}

proctype parent() {
  byte word;
  do
  :: atomic { to_set && !flag -> flag = true; to_set = false }
  :: atomic { bell -> bell = false };
     word = asked;
     if
#ifdef MUT_ANSWERED_TWICE
     :: word > 0 && acted < ALL + DEATHS + 2 ->
#else
     :: word != answered ->
#endif
        acted++;
        assert(!stepping);
#ifdef MUT_FLAG_FIRST
        flag = true;
#endif
        actions = word;
        answered = word;
#ifndef MUT_FLAG_FIRST
        if
        :: atomic { !flag -> flag = true; to_set = false }
        :: atomic { flag -> to_set = true }
        fi
#endif
     :: else
     fi
  :: done -> break
  od
}

init { atomic { run worker(); run parent() } }
