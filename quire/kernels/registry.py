"""The choice of the implementation that serves a device; the ops themselves are elsewhere."""

from __future__ import annotations

from quire.core.errors import NoKernelError
from quire.kernels.backend import Backend


def create_backend(device: str, *, threads: int) -> Backend:
    """Make the backend for ``device`` (``cpu`` or ``reference``); import it only now.

    Raises:
        NoKernelError: The backend cannot be used here; the message says what is missing.
    """
    if device == "cpu":
        from quire.kernels.cpu.backend import CpuBackend

        return CpuBackend(threads=threads)
    if device == "reference":
        try:
            from quire.kernels.reference.backend import ReferenceBackend
        except ImportError as error:
            raise NoKernelError(
                f"[backend] reference needs torch; got {error}. Install the extra `quantize`."
            ) from error
        return ReferenceBackend()
    raise NoKernelError(f"[backend] device must be cpu or reference; got {device}.")
