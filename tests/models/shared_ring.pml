/* csrc/shared_ring.h: two producers, who may die at any step, and a consumer that waits for COUNT
   and takes what it can peek. A producer that finds the ring full waits for room. With as many
   records as there are by default, three positions in two slots.
   With LEAVE a producer may leave instead of publishing what it has claimed. With CONSUMER_DIES the
   consumer may die between any two steps of a release, and another one takes over.

   Checked: no process is wedged, whichever dies where (no invalid end state); never more than HIGH
   positions in flight, so none in a slot that is not passed; a wait that ends well has something to
   peek; each record is released exactly once, whole, in its producer's order, and only if it was
   published; the consumer is told of a loss only when nothing it waits for is left.
   Not modelled: memory orders (every access is sequentially consistent), the wrap of positions and
   laps, join (an incarnation is a producer), a producer declared dead that is not, reap_claimant,
   several slots to one post, abandon (it takes the arrow of a death), a consumer's death asleep.

   Both positions are those of position_body.pml, whose mutations hold here too. And:
     MUT_CLAIM_BY_FETCH_ADD  claims by the tail and stamps later: a hole without an owner
     MUT_CLAIM_BY_STORE      stamps without comparing: two own the slot
     MUT_PUBLISH_EARLY       publishes before the record is whole
     MUT_POST_FIRST          counts before it publishes: the scan after the wake-up misses it
     MUT_ABORT_BY_STORE      aborts without comparing: what the dead published just before is gone
     MUT_FREE_THIS_LAP       frees for the lap that was: a hint that lags behind leads back to it
     MUT_RELEASE_FIRST       releases, then reads
     MUT_COUNT_AFTER_SCAN    the count is read after the scan: the post in between is not awaited
     MUT_LOST_AFTER_SCAN     asks who is dead after the scan: what they published in between is left
     MUT_ROOM_UNSIGNED       takes a head seen long ago for a tail that lags, and claims though full
     MUT_LEAVE_SILENT        (LEAVE) leaving wakes no process: the consumer waits for its claim
     MUT_ABORTED_ASIDE       waits for COUNT beside the aborted ones: it ends well with nothing to
                             peek; and with COUNT=2 consumer and producers wait for each other
   COUNT=2 with LOW=0 must be found wrong too: a consumer that waits for more than LOW + 1 may wait
   for a producer that waits for it.

   spin -a [-DLEAVE | -DCONSUMER_DIES | -DSLOTS=4 -DCOUNT=2] shared_ring.pml &&
   cc -O2 -DSAFETY -DCOLLAPSE -o pan pan.c && ./pan -m100000 */
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef HIGH
#define HIGH 2
#endif
#ifndef LOW
#define LOW 1
#endif
#ifndef COUNT
#define COUNT 1
#endif
#ifndef RECORDS0
#define RECORDS0 2  /* of producer 0 */
#endif
#ifndef RECORDS1
#define RECORDS1 1
#endif
#ifndef DEATHS
#define DEATHS 2    /* of producers, at most */
#endif

#ifndef STIRS
#define STIRS 0     /* returns from the futex that no wake caused */
#endif

#define PRODUCERS 2
#define MORTAL (i < DEATHS)

#define FREE 0
#define CLAIMED 1
#define PUBLISHED 2
#define ABORTED 3
#define WORD(lap, stamp, state) ((lap) * 16 + (stamp) * 4 + (state))
#define LAP(word) ((word) / 16)
#define STAMP(word) (((word) / 4) & 3)
#define STATE(word) ((word) & 3)
#define LAP_OF(position) ((position) / SLOTS)
#define SLOT(position) slot[(position) % SLOTS]

#define ALIVE 0
#define DEAD 1
#define LEFT 2

byte owner[PRODUCERS];
byte ended;
byte sent[PRODUCERS];       /* ghosts: published, and released, of each producer */
byte taken[PRODUCERS];

#define UNTAKEN (sent[0] + sent[1] - taken[0] - taken[1])
#define ANY_ALIVE (owner[0] == ALIVE || owner[1] == ALIVE || owner[0] + owner[1] == 2 * LEFT)
/* The consumer when nothing more can come; a producer may die while it sleeps. */
#define AT_REST(p, wanted, me) \
  ((me == 1 && ended == PRODUCERS && UNTAKEN < COUNT && ANY_ALIVE && !OVER(p, wanted)) || \
   (me > 1 && me < 2 << DEATHS))

#include "position_body.pml"

typedef Slot {
  byte word;
  byte a, b         /* the record: its producer's tag, written twice */
}
Slot slot[SLOTS];
byte tail;
Position published;
Position head;

#define TAG(producer, n) ((producer) * 16 + (n))

inline move_tail(from) {
  if
  :: d_step { tail == from -> tail = from + 1 }
  :: tail != from
  :: MORTAL -> goto died
  fi
}

#ifdef MUT_ROOM_UNSIGNED
#define FULL(position) (position >= head_seen + HIGH && position <= head_seen + SLOTS)
#else
#define FULL(position) (position >= head_seen + HIGH)
#endif

inline wait_room() {
  at = tail;
  head_seen = AT(head);
  d_step {
    if
    :: LOW < HIGH -> seen = LOW
    :: else -> seen = HIGH - 1
    fi;
    at = (at > seen -> at - seen : 0);
    seen = 0
  };
  wait_until(head, at, 2 << i, false);
  d_step { at = 0; outcome = 0 }
}

inline claim() {
  do
  :: at = tail;
     if
     :: FULL(at) -> head_seen = AT(head)
     :: else
     fi;
     if
     :: FULL(at) -> wait_room()
     :: else ->
#ifdef MUT_CLAIM_BY_FETCH_ADD
        d_step { at = tail; tail++ };
        if
        :: MORTAL -> goto died
        :: SLOT(at).word = WORD(LAP_OF(at), i + 1, CLAIMED); break
        fi
#else
        if
        :: LAP(SLOT(at).word) < LAP_OF(at) -> wait_room()     /* the last lap is still unread */
        :: LAP(SLOT(at).word) > LAP_OF(at) -> move_tail(at)
        :: LAP(SLOT(at).word) == LAP_OF(at) && STATE(SLOT(at).word) != FREE -> move_tail(at)
        :: d_step { SLOT(at).word == WORD(LAP_OF(at), 0, FREE) -> seen = SLOT(at).word };
           if
#ifdef MUT_CLAIM_BY_STORE
           :: SLOT(at).word = WORD(LAP_OF(at), i + 1, CLAIMED); move_tail(at); break
#else
           :: d_step {
                SLOT(at).word == seen ->
                SLOT(at).word = WORD(LAP_OF(at), i + 1, CLAIMED);
                assert(at < AT(head) + HIGH)
              };
              move_tail(at);
              break
           :: SLOT(at).word != seen
#endif
           :: MORTAL -> goto died
           fi
        fi
#endif
     fi
  od;
  seen = 0
}

inline publish() {
  if
  :: d_step {
       SLOT(at).word == WORD(LAP_OF(at), i + 1, CLAIMED) ->
       SLOT(at).word = WORD(LAP_OF(at), i + 1, PUBLISHED);
       sent[i]++
     }
  :: SLOT(at).word != WORD(LAP_OF(at), i + 1, CLAIMED) -> assert(false)
  :: MORTAL -> goto died
  fi
}

proctype producer(byte i; byte records) {
  WAITER;
  byte at, head_seen, seen;
  do
  :: sent[i] == records -> goto finished
  :: else ->
     claim();
#ifdef LEAVE
     if
     :: owner[i] = LEFT;
#ifndef MUT_LEAVE_SILENT
        mark_lost(published);
#endif
        goto finished
     :: skip
     fi;
#endif
#ifdef MUT_PUBLISH_EARLY
     publish();
     SLOT(at).a = TAG(i, sent[i]);
     SLOT(at).b = TAG(i, sent[i]);
     post(published, 1, MORTAL);
#else
     SLOT(at).a = TAG(i, sent[i] + 1);
     if :: MORTAL -> goto died :: skip fi;
     SLOT(at).b = TAG(i, sent[i] + 1);
#ifdef MUT_POST_FIRST
     post(published, 1, MORTAL);
     publish();
#else
     publish();
     post(published, 1, MORTAL);
#endif
#endif
     at = 0
  od;
rest:
died:
  owner[i] = DEAD;
  mark_lost(published);
finished:
  ended++
}

/* -- the consumer -- */

#ifdef CONSUMER_DIES
#define FRAILTY true
#define FRAIL if :: goto died :: skip fi;
#else
#define FRAILTY false
#define FRAIL
#endif

#define IS(position, state) \
  (LAP(SLOT(position).word) == LAP_OF(position) && STATE(SLOT(position).word) == state)

inline aborted(position, out) {
  if
  :: d_step { IS(position, ABORTED) || LAP(SLOT(position).word) > LAP_OF(position) -> out = true }
  :: d_step { IS(position, CLAIMED) -> seen = SLOT(position).word; out = false };
     if
     :: owner[STAMP(seen) - 1] == ALIVE
     :: owner[STAMP(seen) - 1] != ALIVE ->
        if
#ifdef MUT_ABORT_BY_STORE
        :: d_step { SLOT(position).word = WORD(LAP_OF(position), 0, ABORTED); out = true }
#else
        :: d_step {
             SLOT(position).word == seen ->
             SLOT(position).word = WORD(LAP_OF(position), 0, ABORTED);
             out = true
           }
        :: SLOT(position).word != seen      /* published before its owner died */
#endif
        fi
     fi;
     seen = 0
  :: else -> out = false
  fi
}

inline free(position) {
  FRAIL
  d_step {
    if
    :: STATE(SLOT(position).word) == PUBLISHED ->
       seen = SLOT(position).a;
       assert(seen == SLOT(position).b && seen % 16 == taken[seen / 16] + 1);
       taken[seen / 16]++;
       assert(taken[seen / 16] <= sent[seen / 16])
    :: else
    fi;
    seen = 0;
    SLOT(position).a = 0;
    SLOT(position).b = 0;
#ifdef MUT_FREE_THIS_LAP
    SLOT(position).word = WORD(LAP_OF(position), 0, FREE)
#else
    SLOT(position).word = WORD(LAP_OF(position) + 1, 0, FREE)
#endif
  }
}

inline pass(passed) {
  if
  :: passed > 0 ->
     FRAIL
     if
     :: ADVANCE_UNARMED(head, passed)
     :: ADVANCE_ARMED(head, passed);
        if
        :: tail <= AT(head) + LOW -> FRAIL wake_if_armed(head, FRAILTY)
        :: else
        fi
     fi;
     own = own + passed
  :: else
  fi
}

inline skip_aborted() {
  n = 0;
  do
  :: n == SLOTS -> break
  :: else ->
     aborted(own + n, yes);
     if
     :: yes -> free(own + n); n++
     :: else -> break
     fi
  od;
  pass(n);
  n = 0
}

/* In one step: none that is dead comes back, so looks one after the other see no more. */
inline all_lost() {
  all = owner[0] != ALIVE && owner[1] != ALIVE && (owner[0] == DEAD || owner[1] == DEAD)
}

/* Leaves in `n` how many of the own COUNT positions are neither published nor out of the way. */
inline missing() {
#ifdef MUT_ABORTED_ASIDE
  skip_aborted();
  j = 0;
  left = COUNT;
  do
  :: left == 0 || j == SLOTS -> break
  :: else ->
     aborted(own + j, yes);
     if
     :: yes
     :: !yes && IS(own + j, PUBLISHED) -> left--
     :: else -> n++; left--
     fi;
     j++
  od;
  left = 0;
#else
  do
  :: skip_aborted();
     j = 0;
     do
     :: j == COUNT -> break
     :: else ->
        aborted(own + j, yes);
        if
        :: yes || IS(own + j, PUBLISHED)
        :: else -> n++
        fi;
        j++
     od;
     if
     :: n > 0 || IS(own, PUBLISHED) -> break
     :: else        /* the head was aborted meanwhile */
     fi
  od;
#endif
  j = 0;
  yes = false
}

inline wait_ready() {
  do
  :: clear_lost(published);
#ifndef MUT_COUNT_AFTER_SCAN
     count = AT(published);
#endif
#ifndef MUT_LOST_AFTER_SCAN
     all_lost();
#endif
     missing();
#ifdef MUT_COUNT_AFTER_SCAN
     count = AT(published);
#endif
     if
     :: n == 0 -> outcome = Ready; break
     :: else
     fi;
#ifdef MUT_LOST_AFTER_SCAN
     all_lost();
#endif
     if
     :: all -> outcome = Loss; break
     :: else
     fi;
     d_step { count = count + n; n = 0 };
     wait_until(published, count, 1, true);
     if
     :: outcome == TimedOut -> break
     :: else
     fi
  od;
  count = 0;
  n = 0
}

inline read_all() {
  j = 0;
  do
  :: j == n -> break
  :: else -> assert(SLOT(own + j).a != 0 && SLOT(own + j).a == SLOT(own + j).b); j++
  od
}

inline release() {
  j = 0;
  do
  :: j == n -> break
  :: else -> free(own + j); j++
  od;
  pass(n)
}

proctype consumer() {
  WAITER;
  byte own;          /* the head, which only the consumer moves */
  byte count, n, j, left, seen;
  bool yes, all;
again:
  do
  :: wait_ready();
     if
     :: outcome == Loss -> assert(UNTAKEN < COUNT); goto rest
     :: else
     fi;
     skip_aborted();
     do
     :: n < SLOTS - own % SLOTS && IS(own + n, PUBLISHED) -> n++
     :: else -> break
     od;
     assert(n > 0 || outcome == TimedOut);
#ifdef MUT_RELEASE_FIRST
     release();
     read_all();
#else
     read_all();
     release();
#endif
     n = 0;
     j = 0
  od;
died:
  mark_lost(head);
  clear_lost(head);
  d_step { count = 0; n = 0; j = 0; seen = 0; yes = false; all = false; own = AT(head) };
  goto again;
rest:
  skip
}

init {
  atomic {
    run producer(0, RECORDS0);
    run producer(1, RECORDS1);
    run consumer()
  }
}
