"""Selection of a rank's GPUs if a job gives each rank its own; imports as little as ``rank``."""

#: The variables that select GPUs from NVIDIA, AMD and Intel. Batch systems set them.
NAMES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


class TooFewDevices(Exception):
    """A rank would have to share a GPU with another one."""


def variables(wanted: str, environment: "dict[str, str]") -> "dict[str, str]":
    """Return the environment of a rank that sees only its own GPUs.

    Args:
        wanted: N:NAME or N:NAME=LIST, from ``site.run.gpus.word``. The default for LIST is the batch system's value of
            the variable NAME, or else the driver's numbers.
        environment: the rank's environment, with LOCAL_RANK.

    Raises:
        TooFewDevices: the job has fewer GPUs on this node.
    """
    number, _, rest = wanted.partition(":")
    name, _, ordered = rest.partition("=")
    count, local = int(number), int(environment["LOCAL_RANK"])
    there = ordered or environment.get(name, "")
    devices = there.split(",") if there else ["%d" % place for place in range((local + 1) * count)]
    own = devices[local * count : (local + 1) * count]
    if len(own) < count:
        raise TooFewDevices(
            "local rank %d needs %d GPUs after %d others, but %s names %d: %s"
            % (local, count, local * count, name, len(devices), there)
        )
    return {**environment, name: ",".join(own)}
