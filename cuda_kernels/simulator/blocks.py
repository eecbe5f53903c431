"""The threads of a block, one at a time: each runs until it waits or ends.

One baton goes round. Whoever holds it runs; all others sleep, each on a lock of its own, and nobody polls. The order is
fixed, so every run of a kernel is the same run. A barrier, a shuffle, a vote are one thing here, a meeting: the lanes
of a group come, each brings a value, and when all have come they go on.
"""

from _thread import allocate_lock
from collections import deque
from contextlib import contextmanager
from typing import NamedTuple

from cuda_kernels.simulator.flights import Flights
from cuda_kernels.simulator.meetings import Meeting, Part
from cuda_kernels.simulator.places import kernel_frame, numbers, place

WARP = 32
IDLE_TURNS = 100_000        # so many vain looks at memory, or naps, in a row, all threads together, count as a deadlock


class Dim3(NamedTuple):
    """An index or a size in three directions."""

    x: int
    y: int
    z: int


class Ended(BaseException):
    """Wakes a sleeping thread to end it, because the run has failed elsewhere."""


class Deadlock(RuntimeError):                           # noqa: N818 — a plain word
    """No thread of the block can go on; the text says where each of them waits."""


class Lane:
    """One CUDA thread: where it stands, what it waits for, and the lock it sleeps on."""

    def __init__(self, number, threadIdx):
        self.number, self.threadIdx = number, threadIdx
        self.warp, self.lane = divmod(number, WARP)
        self.baton = allocate_lock()
        self.baton.acquire()
        self.inside = False                             # of the kernel: running, or asleep in it
        self.meeting = self.frame = None                # what it waits for, and the kernel's frame there


class Block:
    """One block of a launch: its lanes, who of them is ready to run, who waits for whom.

    cuda: what the kernel knows as `cuda`; it is told whose turn it is. watch: an audit's eye on this block, or None.
    """

    def __init__(self, lanes, blockIdx, cuda, watch=None):
        self.lanes, self.blockIdx, self.cuda, self.watch = lanes, blockIdx, cuda, watch
        self.live = len(lanes)
        self.alive = [0] * (lanes[-1].warp + 1)         # per warp, one bit for each lane that has not returned
        for lane in lanes:
            self.alive[lane.warp] |= 1 << lane.lane
        self.ready, self.meetings, self.copies = deque(lanes), {}, Flights(self)
        self.main = allocate_lock()                     # the baton of whoever started the block
        self.main.acquire()
        self.running, self.failed, self.error, self.idle = None, False, None, 0

    # --- turns ---

    def turn_of(self, lane):
        """From now on, this is the lane that runs."""
        self.running = lane
        self.cuda.threadIdx, self.cuda.laneid = lane.threadIdx, lane.lane

    def next(self):
        """Pass the baton on: to the first that is ready, or back to whoever started the block."""
        if self.ready and not self.failed:
            lane = self.ready.popleft()
            self.turn_of(lane)
            lane.baton.release()
        else:
            self.running = None
            self.main.release()

    @contextmanager
    def alone(self):
        """The one lane of this block runs here and now, in the caller's own Python thread."""
        lane = self.ready.popleft()
        self.turn_of(lane)
        lane.inside = True
        try:
            yield
        except BaseException as error:
            error.add_note(self.whose(lane))
            raise
        finally:
            self.leave(lane)

    def sleep(self):
        """Let the others run until it is this lane's turn again."""
        me = self.running
        if self.ready and self.ready[0] is me:
            self.ready.popleft()
            return
        if len(self.lanes) == 1:                        # it runs inline: there is nobody to wake it
            raise Deadlock(self.report())
        self.next()
        me.baton.acquire()
        if self.failed:
            raise Ended

    def look_again(self):
        """Called where a thread finds memory unchanged (a lock still taken, say): let the others run first."""
        self.idle += 1
        if self.idle > IDLE_TURNS:
            raise Deadlock(self.report())
        self.ready.append(self.running)
        self.sleep()

    # --- meetings ---

    def meet(self, operation, group, value=None):
        """Come to this operation and wait until its group has come: {number of a lane: value it brought}.

        group: see `meetings`.
        """
        lane, frame = self.running, kernel_frame()
        if self.failed:
            raise Ended                                 # a `finally` of the kernel that wants to wait once more
        meeting = self.meetings.get(group)
        if meeting is None:
            meeting = self.meetings[group] = Meeting(operation, group)
        elif meeting.operation != operation:
            other = meeting.waiting[0]
            raise RuntimeError(f"{self.name(lane)} comes to {operation} ({place(frame)}) while {self.name(other)} "
                               f"waits for it at {meeting.operation} ({place(other.frame)})")
        lane.meeting, lane.frame = meeting, frame
        meeting.waiting.append(lane)
        meeting.values[lane.number] = value
        if self.watch:
            self.watch.arrived(meeting, lane)
        self.release_if_complete(meeting)
        self.sleep()
        return meeting.values

    def release_if_complete(self, meeting):
        """Let all go on, in the order of their numbers, once the last has come."""
        if len(meeting.waiting) < meeting.group.size(self):
            return
        del self.meetings[meeting.group]
        meeting.waiting.sort(key=lambda lane: lane.number)
        if self.watch:
            self.watch.released(self, meeting)
        for lane in meeting.waiting:
            lane.meeting = lane.frame = None
        self.ready.extend(meeting.waiting)
        self.idle = 0

    def leave(self, lane):
        """This lane has returned: nobody waits for it any more."""
        lane.inside, lane.meeting, lane.frame = False, None, None
        self.live -= 1
        self.alive[lane.warp] &= ~(1 << lane.lane)
        self.idle = 0
        if not self.failed:
            for meeting in list(self.meetings.values()):
                self.release_if_complete(meeting)

    # --- words ---

    def name(self, lane):
        """A thread as people call it: its number in a flat block, its index otherwise."""
        return f"thread {lane.number if self.cuda.flat else tuple(lane.threadIdx)}"

    def whose(self, lane):
        """The note that an exception carries."""
        return f"in {self.name(lane)} of block {tuple(self.blockIdx)}"

    def report(self):
        """Who waits where."""
        groups = {}
        for lane in self.lanes:
            if lane.meeting:
                mask = f" with mask {lane.meeting.group.mask:#x}" if isinstance(lane.meeting.group, Part) else ""
                what = f"waiting at {lane.meeting.operation}{mask} ({place(lane.frame)})"
            else:
                what = "looking at memory in vain" if lane.inside else "returned"
            groups.setdefault(what, []).append(lane.number)
        lines = [f"    {what}: threads {numbers(group)}" for what, group in groups.items()]
        return "\n".join([f"no thread of block {tuple(self.blockIdx)} can go on", *lines])
