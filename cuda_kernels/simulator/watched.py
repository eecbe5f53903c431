"""The eyes of an audit: arrays that note every access, and a watch on each launch and each block."""

from operator import mul

import numpy as np

from cuda_kernels.simulator import races
from cuda_kernels.simulator.findings import Counts, Finding, Side
from cuda_kernels.simulator.memory import Guarded
from cuda_kernels.simulator.places import kernel_frame
from cuda_kernels.simulator.races import ATOMIC, READ, WRITE


class Watched(Guarded):
    """A guarded array in shared or global memory, during an audit."""

    __slots__ = ("address", "device", "itemsize", "strides")

    def __init__(self, data, origin):
        super().__init__(data, origin)
        self.device = origin.device
        self.address, self.strides, self.itemsize = address_of(data), data.strides, data.itemsize

    def __getitem__(self, index):
        value = super().__getitem__(index)
        if type(value) is not Watched:
            self.note(READ, index)
        return value

    def __setitem__(self, index, value):
        super().__setitem__(index, value)
        self.note(WRITE, index)

    def note(self, action, index):
        """Tell the block's watch of an access to the cells at this index."""
        watch = self.device.block.watch
        if type(index) is int and len(self.strides) == 1:
            watch.access(action, self, self.address + index * self.strides[0])
        elif type(index) is tuple and len(index) == len(self.strides) and all(type(i) is int for i in index):
            watch.access(action, self, self.address + sum(map(mul, index, self.strides)))
        else:
            index = index if type(index) is tuple else (index,)
            self.note_all(action, self.data[index if ... in index else (*index, ...)])      # with … it is a view

    def note_all(self, action, view):
        """The same for every cell of a view."""
        for address in addresses_of(view):
            self.device.block.watch.access(action, self, address)

    def addresses(self):
        """Where its cells lie."""
        return addresses_of(self.data)

    def reading(self):
        self.note_all(READ, self.data)
        return self.data

    def writing(self):
        self.note_all(WRITE, self.data)
        return self.data

    def atomic_cell(self, index):
        cell = super().atomic_cell(index)
        self.note_all(ATOMIC, cell)
        return cell


class LaunchWatch:
    """An audit's watch on one launch: what happens in global memory, over all blocks."""

    def __init__(self, audit, kernel, lanes):
        self.audit, self.kernel, self.lanes = audit, kernel, lanes
        self.memory = races.Shadow()

    def block(self, blockIdx):
        """A watch on the next block."""
        races.start(self.lanes)
        watch = BlockWatch(self, blockIdx)
        self.audit.blocks.append((self.kernel.__name__, tuple(blockIdx), watch.counts))
        return watch


class BlockWatch:
    """An audit's watch on one block: its barriers, its shared memory, its counts."""

    def __init__(self, launch, blockIdx):
        self.launch, self.blockIdx = launch, blockIdx
        self.counts, self.memory = Counts(blocks=1), races.Shadow()

    # --- memory ---

    def access(self, action, array, address):
        """A thread touches one cell."""
        origin, size, lane = array.origin, array.itemsize, array.device.block.running
        self.counts.add(action, origin.space)
        memory = self.memory if origin.space == "shared" else self.launch.memory
        if origin.space == "shared" and (began := array.device.block.copies.over.get(address)):
            self.find("race", origin, address, began, self.now(array.device.block, action))
        for cell in memory.at(address, size, self):
            known = cell.last[READ].get(lane.number)
            if action is READ and known and known.time == lane.now and cell.block is self:
                continue                                # nothing has changed since it read this before
            access = self.now(array.device.block, action)
            if origin.space == "shared" and not cell.written and action is not WRITE:
                self.find("uninitialised", origin, address, access)
            for other in cell.add(access, lane.past):
                self.find("race", origin, address, other, access)

    def now(self, block, action):
        """What the running thread does at this place in the kernel."""
        lane, frame = block.running, kernel_frame()
        return races.Access(self, lane.number, lane.now, action, frame.f_code.co_filename, frame.f_lineno)

    def find(self, kind, origin, address, *accesses):
        """Report what was found about one cell."""
        index = index_of(origin.data, address)
        sides = [Side(self.thread(a), a.action, a.file, a.line) for a in accesses]
        where = (self.blockIdx, address) if origin.space == "shared" else address
        self.launch.audit.add(Finding(kind, origin.name, index, *sides), where)

    def thread(self, access):
        """`thread 3 of block (0, 0, 0)`."""
        return self.name(self.launch.lanes[access.number], access.block.blockIdx)

    def name(self, lane, blockIdx=None):
        flat = not any(lane.threadIdx.y or lane.threadIdx.z for lane in self.launch.lanes)
        return f"thread {lane.number if flat else tuple(lane.threadIdx)} of block {tuple(blockIdx or self.blockIdx)}"

    # --- meetings ---

    def arrived(self, meeting, lane):
        """A lane comes to a barrier or a warp operation."""
        if meeting.operation in races.ORDER_MEMORY:
            races.tell(meeting, lane)

    def released(self, block, meeting):
        """All have come: who came from where?"""
        self.counts.met(meeting.operation)
        if meeting.operation in races.ORDER_MEMORY:
            known = races.known(meeting)
            for lane in meeting.waiting:
                races.learn(lane, known)
        if not meeting.waiting:
            return
        first, *others = meeting.waiting
        path = self.path(first)
        for lane in others:
            for here, there in zip(path, self.path(lane), strict=False):
                if here != there:
                    return self.diverged(meeting, first, here, lane, there)
        if block.live < len(block.lanes) and (gone := meeting.group.absent(block)):
            self.diverged(meeting, first, path[0], gone[0], None)

    def diverged(self, meeting, first, here, second, there):
        """Report a meeting that not all came to from the same line."""
        side = Side(self.name(second), "has returned" if there is None else "waits", *(there or (None, None)))
        self.launch.audit.add(
            Finding("divergence", meeting.operation, None, Side(self.name(first), "waits", *here), side),
            (self.blockIdx, len(self.launch.audit.blocks), self.counts.barriers))

    def path(self, lane):
        """The lines on which a waiting lane stands, from the innermost outwards to the kernel's own."""
        frame, path = lane.frame, []
        while frame:
            path.append((frame.f_code.co_filename, frame.f_lineno))
            if frame.f_code is self.launch.kernel.__code__:
                break
            frame = frame.f_back
        return path

    def absent_lane(self, block, operation, source):
        """Report a shuffle from a lane that has not come."""
        frame, lane = kernel_frame(), block.running
        side = Side(self.name(lane), f"takes the value of lane {source}, which is not there",
                    frame.f_code.co_filename, frame.f_lineno)
        self.launch.audit.add(Finding("absent lane", operation, None, side), (self.blockIdx, lane.number))


def address_of(data):
    """Where the first cell of a NumPy array lies in memory."""
    return data.__array_interface__["data"][0]


def addresses_of(data):
    """Where the cells of a NumPy array lie in memory."""
    offsets = np.zeros(data.shape, np.int64)
    for axis, (size, stride) in enumerate(zip(data.shape, data.strides, strict=True)):
        offsets += np.expand_dims(np.arange(size) * stride, [a for a in range(data.ndim) if a != axis])
    return (address_of(data) + offsets).ravel().tolist()


def index_of(data, address):
    """The index of the cell at this address."""
    rest, index = address - address_of(data), [0] * data.ndim
    for axis in sorted(range(data.ndim), key=lambda axis: -abs(data.strides[axis])):
        if data.strides[axis]:
            index[axis], rest = divmod(rest, data.strides[axis])
    return tuple(index)
