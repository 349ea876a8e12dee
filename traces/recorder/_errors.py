class RecorderError(RuntimeError):
    """What the recorder cannot do, and what to do about it."""


class Recorded(BaseException):
    """Leaves the training loop once the step is recorded (stop=True)."""
