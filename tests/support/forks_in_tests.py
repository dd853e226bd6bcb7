"""Forks of the process that runs a test."""

import os
import pickle
import traceback


class Fork:
    """A fork of this process that calls ``function(wait)`` and sends back the result."""

    def __init__(self, function):
        wait_end, self._go = os.pipe()
        self._results, write_end = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._go)
            try:
                try:
                    result = function(lambda: os.read(wait_end, 1))
                except BaseException:
                    result = traceback.format_exc()
                with os.fdopen(write_end, "wb") as out:
                    pickle.dump(result, out)
            finally:  # it must not go on as a second copy of the tests
                os._exit(0)
        os.close(wait_end)
        os.close(write_end)

    def result(self):
        """End the function's ``wait()``; return the function's result."""
        os.close(self._go)
        with os.fdopen(self._results, "rb") as results:
            result = pickle.load(results)
        os.waitpid(self._pid, 0)
        return result
