"""The payload of doctor's job in each rank of an image with Horovod: a sum in the framework Horovod was built for."""

#: Passed to the image's own Python with ``-c``; rank 0 writes its measurements to the payload's result.
SOURCE = """
import importlib, json, os
reasons = []
for name in ("tensorflow", "torch"):
    try:
        framework = importlib.import_module(name)
        hvd = importlib.import_module("horovod." + name)
        break
    except ImportError as error:
        reasons.append("%s: %s" % (name, error))
else:
    raise SystemExit("no framework that this Horovod was compiled for: " + "; ".join(reasons))
hvd.init()
mine = [float(hvd.rank() + 1)]
if name == "tensorflow":
    total = float(hvd.allreduce(framework.constant(mine), op=hvd.Sum)[0])
else:
    total = float(hvd.allreduce(framework.tensor(mine), op=hvd.Sum)[0])
right = hvd.size() * (hvd.size() + 1) / 2
if total != right:
    raise SystemExit("the sum over %d ranks is %g, not %g" % (hvd.size(), total, right))
if hvd.rank() == 0:
    version = importlib.import_module("horovod").__version__
    shown = {"horovod": version, "framework": "%s %s" % (name, framework.__version__), "size": hvd.size(), "sum": total}
    with open(os.environ["DEPLOYER_RESULT"], "w") as stream:
        json.dump(shown, stream)
hvd.shutdown()
"""
