import torch

# Matrices this small are slower with more threads, and far slower on a machine that is busy with something else.
torch.set_num_threads(1)
