import os

from hypothesis import settings

# Tiny matrices are slower on several threads, and much slower when other processes want the cores too. Read when torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
