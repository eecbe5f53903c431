"""The Python threads that play a block's CUDA threads, when there is more than one.

They are started once per launch and play every block of it; no trace of them is left behind, however the launch ends.
"""

import ctypes
import sys
import threading
import time
from contextvars import copy_context

from cuda_kernels.simulator.blocks import Deadlock, Ended

PATIENCE = 5.0              # seconds that an interrupted thread is given to end
HEARTBEAT = 0.5             # seconds after which the sleeping main thread hears of Ctrl-C at the latest


class Crew:
    """As many Python threads as a block has lanes; a context manager that ends them."""

    def __init__(self, lanes, body):
        self.lanes, self.body, self.block = lanes, body, None
        trace = sys.gettrace()
        self.threads = [threading.Thread(target=copy_context().run, args=(self.work, lane, trace), daemon=True,
                                         name=f"CUDA thread {lane.number}") for lane in lanes]

    def __enter__(self):
        try:
            for thread in self.threads:
                thread.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.block = None
        for lane in self.lanes:                         # also of a thread that is only just starting
            if lane.baton.locked():
                lane.baton.release()
        for thread in self.threads:
            if thread.ident:
                thread.join(PATIENCE)

    def work(self, lane, trace):
        """What each Python thread does: take one turn after another."""
        if trace and not sys.gettrace():                # so that breakpoints are met here too
            sys.settrace(trace)
        try:
            while self.turn(lane):
                pass
        except Ended:                                   # sent by `stop` just after this turn was over
            pass

    def turn(self, lane):
        """Wait for the baton, play the kernel, pass the baton on. False if there is nothing more to play."""
        lane.baton.acquire()
        block = self.block
        if block is None:
            return False
        lane.inside = True
        try:
            if not block.failed:
                self.body()
        except Ended:
            pass
        except BaseException as error:
            error.add_note(block.whose(lane))
            block.error, block.failed = error, True
        block.leave(lane)
        block.next()
        return True

    def run(self, block):
        """Play one block to its end. Raises the first thread's exception, or Deadlock."""
        self.block = block
        try:
            block.next()
            while not block.main.acquire(timeout=HEARTBEAT):
                pass
            if block.live and not block.failed:
                raise Deadlock(block.report())
        except KeyboardInterrupt:
            self.stop(block)
            raise
        finally:
            self.unwind(block)
        if block.error:
            try:
                raise block.error
            finally:
                block.error = None                      # its traceback holds this frame

    def unwind(self, block):
        """Wake all that still sleep inside the kernel, so that they end."""
        block.failed = True
        for lane in self.lanes:
            if lane.inside:
                block.turn_of(lane)
                lane.baton.release()
                block.main.acquire(timeout=PATIENCE)

    def stop(self, block):
        """End the thread that is running just now (Ctrl-C reaches the main thread only)."""
        block.failed = True
        lane = block.running
        if lane:
            thread = self.threads[lane.number]
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Ended))
            give_up = time.monotonic() + PATIENCE
            while not block.main.acquire(timeout=0.02) and lane.inside and time.monotonic() < give_up:
                pass
