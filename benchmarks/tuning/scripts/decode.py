"""Images that take long to decode, between the steps."""

import zlib

import common
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

SHAPE = (3, 128, 128)


class Images(Dataset):
    """Compressed in memory; each is filtered row by row once it is unpacked, as PNG is."""

    def __init__(self) -> None:
        rows = torch.randint(0, 4, (8, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
        self.packed = [zlib.compress(one.numpy().tobytes()) for one in rows]

    def __len__(self) -> int:
        return 16 * 256

    def __getitem__(self, place: int) -> Tensor:
        image = torch.frombuffer(bytearray(zlib.decompress(self.packed[place % 8])), dtype=torch.uint8).reshape(SHAPE)
        for row in range(1, SHAPE[1]):
            image[:, row] += image[:, row - 1]
        return image.float() / 255


def main() -> None:
    args = common.options()
    workers = {"num_workers": 1, "persistent_workers": True} if args.fixed else {}
    loader = DataLoader(Images(), batch_size=16, **workers)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, stride=3), nn.Tanh(), nn.Conv2d(16, 16, 3), nn.AdaptiveAvgPool2d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    common.train(model, optimizer, loader, args.steps)


if __name__ == "__main__":
    main()
