"""How does a Hugging Face data set become one client per writer?

With the package ``datasets``, the first lines are ``dataset = datasets.load_dataset(...)``; here a
small object with the same attributes stands in, so that nothing is downloaded.
"""

import matplotlib.pyplot as plt
import numpy as np

import rookery as rk


class Dataset:
    """The part of ``datasets.Dataset`` that is used: names, a format, and slices."""

    def __init__(self, columns):
        self.columns = columns

    @property
    def column_names(self):
        """Names of the columns."""
        return list(self.columns)

    def with_format(self, type, columns):
        """These columns as arrays."""
        assert type == "numpy"
        return Dataset({name: self.columns[name] for name in columns})

    def __len__(self):
        return len(self.columns["label"])

    def __getitem__(self, rows):
        return {name: np.array(values[rows]) for name, values in self.columns.items()}


digits = rk.datasets.load("digits")
dataset = {  # a DatasetDict: one data set per split
    split: Dataset(
        {
            "image": list(rows["inputs"].reshape(-1, 8, 8)),
            "label": rows["labels"].tolist(),
            "writer": [f"writer {i % 6}" for i in range(len(rows["labels"]))],
        }
    )
    for split, rows in {"train": digits.train, "test": digits.test}.items()
}

population = rk.Population.from_huggingface(dataset, client="writer")
print(population.describe("label"))


def loss(w, example):
    """Cross-entropy of softmax regression."""
    return rk.models.cross_entropy(rk.models.dense(w, example["image"].ravel()), example["label"])


def accuracy(w, example):
    """Whether the label has the largest logit."""
    return rk.models.is_correct(rk.models.dense(w, example["image"].ravel()), example["label"])


result = rk.run(
    rk.FedAvg(lr=0.5, local_steps=5),
    rk.SingleLevel(loss),
    population,
    start=(rk.models.dense_init(np.random.default_rng(0), 64, 10),),
    rounds=50,
    evaluate=[rk.metrics.OnClients({"accuracy": accuracy})],
)
print(f"accuracy of the worst writer: {result.history.last('accuracy/worst'):.3f}")

plt.plot(result.history["round"], result.history["accuracy/mean"], label="mean of the writers")
plt.plot(result.history["round"], result.history["accuracy/worst"], label="worst writer")
plt.xlabel("round")
plt.ylabel("accuracy")
plt.legend()
plt.savefig("writers.png")

# %%
# What was learnt: from_huggingface reads columns of a loaded data set, images included, and deals
# rows by a column. Nothing is downloaded by rookery.
