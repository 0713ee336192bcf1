"""What several files of tests share."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest


@pytest.fixture(scope="session")
def interpreter():
    """A process whose Triton interprets: that is decided once, where kernels are defined, and must not reach other tests."""
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    with pool, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONWARNINGS", "ignore")  # numpy's, of the logarithm of a weight that is zero
        pool.submit(os.getpid).result()
        patch.undo()
        yield pool
