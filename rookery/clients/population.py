"""All clients' data in flat arrays, with offsets and counts per client and split."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PyTree, Shaped

from rookery import check
from rookery.clients.columns import read_columns
from rookery.clients.description import DataDescription, count_labels
from rookery.clients.files import CLIENT, read_folder
from rookery.clients.huggingface import SPLIT, needed_columns, read_huggingface
from rookery.clients.pieces import interleaved, lengths
from rookery.clients.population_checks import (
    AnyArray,
    Weights,
    as_names,
    check_like,
    check_names,
    common_length,
    form,
    joined_classes,
    joined_names,
    joined_row_numbers,
    no_rows,
    normalised,
    not_finite,
    one_row,
    row_positions,
)
from rookery.clients.population_file import PopulationWriter, open_stored, read_rows
from rookery.clients.table import DealSettings, Dealt, NamedWeights, deal
from rookery.signature import expands
from rookery.types import Tree

Id = TypeVar("Id")
Rows = PyTree[Shaped[AnyArray, "rows ..."]]


class Population(eqx.Module):
    """The rows of all clients, sorted by client; no padding, however unequal the clients are.

    Build one with :meth:`from_table`, :meth:`from_huggingface`, :meth:`from_folder`,
    :meth:`from_parts` or :meth:`stacked`. A server whose clients keep their rows uses
    :meth:`elsewhere`. :meth:`save` and :meth:`open` are for populations that do not fit into
    memory. :meth:`describe` shows who holds what.

    Attributes:
        data: pytree of arrays, the rows of all clients.
        offsets: where the rows of a split begin, for each client.
        counts: how many rows of a split each client has.
        weights: of each client in a mean; they sum to one.
        splits: names of the splits, in the order of the first axis of ``offsets``.
        largest: per split, the number of rows of its largest client.
        names: of the clients (a hospital, a writer), for tables and errors; None if they have none.
        encoded: fields that were values of any kind, each with its values in the order of their
            numbers; read them from :attr:`classes`.
        digest: of the content on disk, if rows are mapped from there; otherwise empty.
        places: of a population made by :meth:`resident`: the position of each client among those
            whose rows are here.

    >>> import numpy as np
    >>> hospitals = Population.from_parts(
    ...     {"input": np.eye(3), "label": np.array([0, 1, 1])},
    ...     {"train": [np.array([0, 1]), np.array([2])]},
    ...     names=["Oslo", "Bergen"],
    ... )
    >>> hospitals.n_clients, hospitals.client_name(1), hospitals.rows(1, "train")["label"].tolist()
    (2, 'Bergen', [1])
    """

    data: Rows
    offsets: Int[AnyArray, "splits _places"]
    counts: Int[AnyArray, "splits _places"]
    weights: Float[AnyArray, " clients"]
    splits: tuple[str, ...] = eqx.field(static=True)
    largest: tuple[int, ...] = eqx.field(static=True)
    names: tuple[str, ...] | None = eqx.field(static=True, default=None)
    encoded: tuple[tuple[str, tuple[object, ...]], ...] = eqx.field(static=True, default=())
    digest: str = eqx.field(static=True, default="")
    places: Int[AnyArray, " clients"] | None = None

    def __check_init__(self):
        if self.names is not None:
            check_names(self.names, self.n_clients)

    @property
    def classes(self) -> dict[str, tuple[object, ...]]:
        """Per field that ``encode`` made class numbers of: the values of the classes 0, 1, ...

        An encoded column among several of a field is called "field.column".

        >>> table = {"hospital": ["Oslo", "Bergen"], "ill": ["yes", "no"]}
        >>> Population.from_table(table, client="hospital", encode=["ill"]).classes
        {'ill': ('no', 'yes')}
        """
        return dict(self.encoded)

    @property
    def n_clients(self) -> int:
        """The number of clients."""
        return self.weights.shape[0]

    @classmethod
    def from_parts(
        cls,
        data: Rows,
        parts: Mapping[str, Sequence[Int[np.ndarray, " _rows"]]],
        *,
        weights: Weights | None = None,
        names: Sequence[str] | None = None,
    ) -> "Population":
        """Give every client the rows that its index arrays list.

        Args:
            data: pytree of arrays with one row per sample.
            parts: per split, one array of row numbers per client; :mod:`rookery.partition` makes
                them. A row may be listed repeatedly.
            weights: of the clients in every mean; equal if not given.
            names: of the clients, one each; "client 0", "client 1", ... if not given.

        >>> import numpy as np
        >>> p = Population.from_parts(np.arange(4.0), {"train": [np.array([3]), np.array([0, 1])]})
        >>> p.data.tolist(), p.counts.tolist()
        ([3.0, 0.0, 1.0], [[1, 2]])
        """
        n_rows = common_length(data)
        if not isinstance(parts, Mapping):
            raise TypeError(
                "parts must map the name of each split to one index array per client, got "
                f"{type(parts).__name__}. For a single split write {{'train': parts}}."
            )
        if not parts:
            raise ValueError("parts is empty; name at least one split, such as 'train'.")
        sizes = {split: len(lists) for split, lists in parts.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"every split needs one index array per client, got {sizes}.")
        n_clients = check.count("the number of clients", next(iter(sizes.values())))
        names = as_names(names)
        if names is not None:
            check_names(names, n_clients)
        columns = [
            joined_row_numbers(lists, split, names, n_rows) for split, lists in parts.items()
        ]
        counts = np.stack([lengths(lists) for lists in parts.values()])
        # rows lie client by client and, within a client, split by split
        index, begins = interleaved(columns, counts.T)
        return cls(
            data=jax.tree.map(lambda a: np.asarray(a)[index], data),
            offsets=row_positions(begins.T),
            counts=row_positions(counts),
            weights=normalised(weights, n_clients),
            splits=tuple(parts),
            largest=tuple(int(c) for c in counts.max(axis=1)),
            names=names,
        )

    @classmethod
    @expands(deal)
    def from_table(
        cls,
        table: object,
        *,
        client: str | int,
        weights: NamedWeights = None,
        **settings: Unpack[DealSettings],
    ) -> "Population":
        """Clients from a table with a column that names them: pandas, polars, Arrow, arrays.

        Clients are in the order of the column's sorted values, which become their names.

        Args:
            table: a dictionary of arrays, or anything with named columns.
            client: the column that says whose row it is. Columns with numbers for names are called
                by the number or its text, here and in the other arguments.
            splits: a column that names the split of every row, or fractions as
                ``{"train": 0.8, "test": 0.2}`` of each client's rows, drawn at random. Without it
                all rows are training rows.
            fields: per field of an example, a column or a list of columns; by default every column
                beside ``client`` and ``splits`` is a field of its own.
            encode: columns of text, or of any values, that become class numbers 0, 1, ...: a list
                of columns, whose sorted values are numbered, or per column its values in order.
            missing: "error"; or "drop" to leave out rows with a missing value; or per column a
                value to fill in.
            weights: of the clients in every mean: equal if not given, "rows" for the numbers of
                rows in the split "train" (in all splits if there is none of this name), or by name.
            seed: of the random splits.

        >>> table = {"hospital": ["Oslo", "Bergen", "Oslo"], "age": [31.0, 55.0, 40.0],
        ...          "dose": [1.0, 2.0, 0.5], "ill": ["no", "yes", "yes"]}
        >>> p = Population.from_table(
        ...     table, client="hospital", fields={"input": ["age", "dose"], "label": "ill"},
        ...     encode=["ill"],
        ... )
        >>> p.names, p.rows(1, "train")["input"].tolist(), p.rows(1, "train")["label"].tolist()
        (('Bergen', 'Oslo'), [[31.0, 1.0], [40.0, 0.5]], [0, 1])
        """
        return cls._from_dealt(deal(read_columns(table), client, **settings), weights)

    @classmethod
    @expands(deal)
    def from_huggingface(
        cls,
        dataset: object,
        *,
        client: str,
        weights: NamedWeights = None,
        **settings: Unpack[DealSettings],
    ) -> "Population":
        """Clients from a loaded ``datasets.Dataset``, or from a ``DatasetDict`` with its splits.

        Only the columns that are needed are read, and everything goes to memory. The other
        arguments are those of :meth:`from_table`.

        Args:
            dataset: the data set. A ``DatasetDict`` has splits of its own and takes no ``splits``.
            client: the column that says whose row it is, as ``writer_id``.
            splits: for a single ``Dataset``, a column or fractions.
            fields: per field of an example, a column or a list of columns.
            encode: columns that become class numbers.
            missing: "error", "drop", or per column a value to fill in.
            weights: equal if not given, "rows", or by name.
            seed: of the random splits.

        Use it as::

            dataset = datasets.load_dataset("flwrlabs/femnist")
            population = rk.Population.from_huggingface(
                dataset, client="writer_id", fields={"input": "image", "label": "character"}
            )
        """
        splits, fields = settings.get("splits"), settings.get("fields")
        if isinstance(dataset, Mapping) and splits is not None:
            raise ValueError(
                f"the data set has the splits {list(dataset)} already, got splits={splits!r}. "
                "Leave it out, or pass one of them, as dataset['train'], and how to split it."
            )
        columns = needed_columns(client, splits, fields)
        found, row_numbers = read_huggingface(dataset, columns)
        if row_numbers is not None:
            settings["splits"] = SPLIT
        return cls._from_dealt(deal(found, client, row_numbers, **settings), weights)

    @classmethod
    @expands(deal)
    def from_folder(
        cls,
        path: str | Path,
        *,
        pattern: str = "*",
        read: Callable[[Path], object] | None = None,
        weights: NamedWeights = None,
        **settings: Unpack[DealSettings],
    ) -> "Population":
        r"""Clients from a folder with one file each, named by the files without their suffix.

        Args:
            path: the folder.
            pattern: which of its files, as ``*.csv``; names that begin with a dot are left out.
            read: a function from the path of a file to a table, as ``pandas.read_parquet``; by
                default ``.npz`` and ``.csv`` are read.
            splits: as in :meth:`from_table`, as are all other arguments.
            fields: per field of an example, a column or a list of columns.
            encode: columns that become class numbers.
            missing: "error", "drop", or per column a value to fill in.
            weights: equal if not given, "rows", or by name.
            seed: of the random splits.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name, ages in {"Oslo": "31\n40", "Bergen": "55"}.items():
        ...         _ = Path(folder, f"{name}.csv").write_text(f"age\n{ages}\n")
        ...     p = Population.from_folder(folder)
        >>> p.names, p.rows(1, "train")["age"].tolist()
        (('Bergen', 'Oslo'), [31, 40])
        """
        columns, row_numbers = read_folder(Path(path), pattern=pattern, read=read)
        return cls._from_dealt(deal(columns, CLIENT, row_numbers, **settings), weights)

    @classmethod
    def _from_dealt(cls, dealt: Dealt, weights: NamedWeights) -> "Population":
        in_order = dealt.weights(weights)
        made = cls.from_parts(dealt.data, dealt.parts, weights=in_order, names=dealt.names)
        return replace(made, encoded=tuple(dealt.classes.items()))

    @classmethod
    def stacked(
        cls,
        data: PyTree[Shaped[AnyArray, "clients rows ..."]],
        *,
        split: str = "train",
        weights: Weights | None = None,
        names: Sequence[str] | None = None,
    ) -> "Population":
        """Clients of equal size, from arrays with the axes [clients, rows, ...].

        Args:
            data: pytree of such arrays.
            split: the name of their only split.
            weights: of the clients in every mean; equal if not given.
            names: of the clients, one each; "client 0", "client 1", ... if not given.

        >>> import numpy as np
        >>> p = Population.stacked(np.zeros((3, 5, 2)))
        >>> p.n_clients, p.counts.tolist()
        (3, [[5, 5, 5]])
        """
        shapes = {np.shape(a)[:2] for a in jax.tree.leaves(data)}
        if len(shapes) != 1 or len(shape := next(iter(shapes))) != 2:
            raise ValueError(f"every field must start with the axes [clients, rows], got {shapes}.")
        n_clients, rows = shape
        flat = jax.tree.map(lambda a: np.asarray(a).reshape(n_clients * rows, *a.shape[2:]), data)
        lists = list(np.arange(n_clients * rows).reshape(n_clients, rows))
        return cls.from_parts(flat, {split: lists}, weights=weights, names=names)

    @classmethod
    def elsewhere(
        cls,
        example: Tree,
        n_clients: int,
        *,
        splits: Sequence[str] = ("train",),
        weights: Weights | None = None,
        names: Sequence[str] | None = None,
    ) -> "Population":
        """What a server knows of clients that keep their rows: their number, the shape of a row.

        Args:
            example: one row, or anything with the shapes and types of one.
            n_clients: the number of clients.
            splits: names of the splits that every client has.
            weights: of the clients in every mean; equal if not given.
            names: of the clients, one each; "client 0", "client 1", ... if not given.

        >>> import numpy as np
        >>> p = Population.elsewhere({"input": np.zeros(3), "label": np.int32(0)}, 2)
        >>> p.n_clients, p.has_rows, p.example("train")["input"].shape
        (2, False, (3,))
        """
        check.count("the number of clients", n_clients)
        if not splits:
            raise ValueError("splits is empty; name at least one, such as 'train'.")
        nothing = np.zeros((len(splits), n_clients), np.int32)
        return cls(
            data=jax.tree.map(one_row, example),
            offsets=nothing,
            counts=nothing,
            weights=normalised(weights, n_clients),
            splits=tuple(splits),
            largest=(0,) * len(splits),
            names=as_names(names),
        )

    @classmethod
    def joined(
        cls,
        parts: "Sequence[Population]",
        *,
        weights: Weights | None = None,
        names: Sequence[str] | None = None,
    ) -> "Population":
        """One population of the clients of several, numbered consecutively.

        Args:
            parts: populations with the same splits, and rows of the same shapes and types.
            weights: of all clients in every mean; equal if not given.
            names: of all clients; if not given, those that the parts have.

        >>> import numpy as np
        >>> two, three = (Population.stacked(np.zeros((n, 1))) for n in (2, 3))
        >>> Population.joined([two, three]).n_clients
        5
        """
        if not parts:
            raise ValueError("parts is empty; pass at least one population.")
        for part in parts[1:]:
            part.check_form(parts[0])
        begins = np.cumsum([0, *(common_length(part.data) for part in parts)])
        moved = [np.asarray(p.offsets) + b for p, b in zip(parts, begins[:-1], strict=True)]
        counts = np.concatenate([np.asarray(part.counts) for part in parts], axis=1)
        return cls(
            data=jax.tree.map(lambda *leaves: np.concatenate(leaves), *(p.data for p in parts)),
            offsets=row_positions(np.concatenate(moved, axis=1)),
            counts=row_positions(counts),
            weights=normalised(weights, counts.shape[1]),
            splits=parts[0].splits,
            largest=tuple(int(c) for c in counts.max(axis=1)),
            names=joined_names([(p.names, p.n_clients) for p in parts])
            if names is None
            else as_names(names),
            encoded=joined_classes([part.encoded for part in parts]),
        )

    def save(self, path: str | Path) -> None:
        """Write the population to a folder, for :meth:`open`.

        >>> import tempfile
        >>> import numpy as np
        >>> population = Population.stacked({"a": np.arange(6.0).reshape(3, 2)})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     population.save(Path(folder, "three"))
        ...     again = Population.open(Path(folder, "three"))
        ...     again.is_on_disk, again.rows(2, "train")["a"].tolist()
        (True, [4.0, 5.0])

        Args:
            path: the folder to make.
        """
        weights = np.asarray(self.weights)
        Population.save_joined(path, [self], weights=weights, names=self.names)

    @classmethod
    def save_joined(
        cls,
        path: str | Path,
        parts: "Iterable[Population]",
        *,
        weights: Weights | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        """Write several populations as one, as :meth:`joined` makes it, with one part in memory.

        Args:
            path: the folder to make.
            parts: populations with the same splits and rows of the same shapes and types; a
                generator makes each when the one before is written.
            weights: of all clients in every mean; equal if not given.
            names: of all clients; if not given, those that the parts have.

        >>> import tempfile
        >>> import numpy as np
        >>> ten = (Population.stacked(np.full((2, 3), float(i))) for i in range(5))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Population.save_joined(Path(folder, "ten"), ten)
        ...     Population.open(Path(folder, "ten")).n_clients
        10
        """
        path, begin, first = Path(path), 0, None
        offsets, counts, own_names, encoded = [], [], [], []
        with PopulationWriter(path) as writer:
            for part in parts:
                first = part.without_rows() if first is None else first
                part.check_rows("Population.save")
                part.check_form(first)
                part.check_finite()
                writer.append(part.data)
                offsets.append(np.asarray(part.offsets) + begin)
                counts.append(np.asarray(part.counts))
                own_names.append((part.names, part.n_clients))
                encoded.append(part.encoded)
                begin += common_length(part.data)
            if first is None:
                raise ValueError("parts is empty; pass at least one population.")
            arrays = {
                "offsets": row_positions(np.concatenate(offsets, axis=1)),
                "counts": row_positions(np.concatenate(counts, axis=1)),
            }
            n_clients = arrays["counts"].shape[1]
            arrays["weights"] = normalised(weights, n_clients)
            all_names = joined_names(own_names) if names is None else as_names(names)
            if all_names is not None:
                check_names(all_names, n_clients)
            notes = {
                "splits": list(first.splits),
                "names": None if all_names is None else list(all_names),
                "encoded": [[field, list(values)] for field, values in joined_classes(encoded)],
            }
            writer.finish(arrays, notes)

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = True) -> "Population":
        """A population that :meth:`save` wrote; its rows stay on disk until they are used.

        The compiled engine brings the rows of the next rounds' clients to the device while it
        computes; the numbers are those of the population in memory, bit for bit.

        Args:
            path: the folder.
            verify: read all rows once and compare their digests. Without it, only sizes and types
                of the rows' files are checked, which takes no time.
        """
        stored = open_stored(Path(path), verify=verify)
        counts, notes = stored.arrays["counts"], stored.notes
        return cls(
            data=stored.data,
            offsets=stored.arrays["offsets"],
            counts=counts,
            weights=stored.arrays["weights"],
            splits=tuple(notes["splits"]),
            largest=tuple(int(c) for c in counts.max(axis=1)),
            names=as_names(notes["names"]),
            encoded=tuple((field, tuple(values)) for field, values in notes["encoded"]),
            digest=stored.digest,
        )

    @property
    def is_on_disk(self) -> bool:
        """Whether the rows are mapped from disk, as after :meth:`open`."""
        return any(isinstance(leaf, np.memmap) for leaf in jax.tree.leaves(self.data))

    def in_memory(self) -> "Population":
        """The same population with all rows read into memory.

        >>> import numpy as np
        >>> Population.stacked(np.zeros((3, 5))).in_memory().is_on_disk
        False
        """
        data = jax.tree.map(lambda a: np.array(a, subok=False), self.data)
        return replace(self, data=data, digest="")

    def resident(
        self, clients: Int[np.ndarray, " some"], capacity: int, row_capacity: int
    ) -> "Population":
        """All clients with the rows of some in memory; those of the others must not be read.

        Args:
            clients: whose rows, in ascending order.
            capacity: how many clients the arrays have room for.
            row_capacity: how many rows they have room for; rows beyond the clients' own are zeros.
        """
        begins, counts = (np.asarray(a)[:, clients] for a in (self.offsets, self.counts))
        pieces = begins.T.ravel(), counts.T.ravel()
        ends = np.cumsum(counts.T.ravel()).reshape(counts.T.shape).T
        here, own_counts = (np.zeros((len(self.splits), capacity), np.int32) for _ in range(2))
        here[:, : clients.size], own_counts[:, : clients.size] = ends - counts, counts
        places = np.zeros(self.n_clients, np.int32)
        places[clients] = np.arange(clients.size, dtype=np.int32)

        data = jax.tree.map(lambda a: read_rows(np.asanyarray(a), *pieces, row_capacity), self.data)
        return replace(
            self, data=data, offsets=here, counts=own_counts, places=places, digest="", names=None
        )

    def place(self, client: Id) -> Id | jax.Array:
        """Where the offsets, counts and memories of a client are: among those of the residents."""
        return client if self.places is None else jnp.asarray(self.places)[client]

    @property
    def has_rows(self) -> bool:
        """Whether rows, or at least their numbers, are known; False after :meth:`elsewhere`."""
        return max(self.largest) > 0

    def check_rows(self, who: str) -> None:
        """Raise unless the rows are here; ``who`` needs them."""
        if not self.has_rows:
            raise ValueError(
                f"{who} needs the clients' rows, but this population was built by "
                "Population.elsewhere and has none. Pass a population with rows, or use the remote "
                "engine with clients that hold their own."
            )

    def check_form(self, other: "Population") -> None:
        """Raise unless another population has the same splits, and rows of the same form."""
        mine, theirs = ((p.splits, str(jax.tree.map(form, p.data))) for p in (self, other))
        if mine != theirs:
            raise ValueError(
                f"the populations differ: splits and rows are {mine}, wanted {theirs}."
            )

    def among(self, whole: "Population", first: int) -> "Population":
        """A population of all clients that has the rows of these alone.

        Args:
            whole: all clients; its rows are not used.
            first: the number of the first of these clients in ``whole``.
        """
        self.check_form(whole)
        last = first + self.n_clients
        if not 0 <= first < last <= whole.n_clients:
            raise ValueError(
                f"clients {first} to {last - 1} are not among {whole.n_clients} clients."
            )

        def wide(array: AnyArray) -> np.ndarray:
            every_client = np.zeros((len(self.splits), whole.n_clients), np.int32)
            every_client[:, first:last] = array
            return every_client

        return Population(
            data=self.data,
            offsets=wide(self.offsets),
            counts=wide(self.counts),
            weights=np.asarray(whole.weights),
            splits=self.splits,
            largest=self.largest,
            names=whole.names,
            encoded=self.encoded or whole.encoded,
        )

    def client_name(self, client: int) -> str:
        """What a client is called in tables and errors.

        >>> import numpy as np
        >>> Population.stacked(np.zeros((2, 1)), names=["Oslo", "Bergen"]).client_name(1)
        'Bergen'
        >>> Population.stacked(np.zeros((2, 1))).client_name(1)
        'client 1'
        """
        return f"client {client}" if self.names is None else self.names[client]

    def describe(
        self,
        label: str | Callable[[Rows], AnyArray] | None = None,
        *,
        classes: Sequence[str] | None = None,
        bins: int | None = None,
    ) -> DataDescription:
        """Who holds what: rows per client and split, and labels per client.

        Print the result, or show it in a notebook; ``figure`` draws it.

        Args:
            label: the field that holds the label, or a function from rows to labels; without it
                only rows are counted.
            classes: names of the labels 0, 1, ...; those in :attr:`classes` if not given, or the
                labels themselves.
            bins: for a label that is a measurement: how many ranges of equal width to count.

        >>> import numpy as np
        >>> rows = {"x": np.zeros((2, 3, 1)), "label": np.array([[0, 0, 1], [1, 1, 1]])}
        >>> print(Population.stacked(rows, names=["Oslo", "Bergen"]).describe("label"))
        client | train | label: 0 | 1
        -------|-------|----------|--
        Oslo   |     3 |        2 | 1
        Bergen |     3 |        0 | 3
        all    |     6 |        2 | 4
        """
        self.check_rows("describe")
        clients = range(self.n_clients)
        names = tuple(self.client_name(client) for client in clients)
        counts = np.asarray(self.counts)
        if label is None:
            return DataDescription(names, self.splits, counts)
        read = label if callable(label) else partial(_field, label)
        parts = [[np.asarray(read(self.rows(c, s))) for s in self.splits] for c in clients]
        called = label if isinstance(label, str) else "label"
        if isinstance(label, str) and label in self.classes and classes is None and bins is None:
            classes = [str(value) for value in self.classes[label]]
        return DataDescription(
            names, self.splits, counts, called, *count_labels(parts, classes, bins)
        )

    def check_finite(self) -> None:
        """Raise if a row has a NaN or an infinity, and say where it is.

        >>> import numpy as np
        >>> Population.stacked({"a": np.array([[0.0, 1.0], [2.0, np.nan]])}).check_finite()
        Traceback (most recent call last):
            ...
        ValueError: client 1, split 'train', field ['a'], row 1: the data has a NaN or an infinity \
(number of such rows: 1). Correct or remove them.
        """
        if self.is_on_disk and self.digest:
            return  # rows are checked when they are saved
        found = not_finite(self.data, np.asarray(self.offsets), np.asarray(self.counts))
        if found is not None:
            split, client, field, row, times = found
            raise ValueError(
                f"{self.client_name(client)}, split {self.splits[split]!r}, {field}row {row}: the "
                f"data has a NaN or an infinity (number of such rows: {times}). Correct or "
                "remove them."
            )

    def split_index(self, split: str) -> int:
        """The position of a split; an error names the nearest valid one."""
        return self.splits.index(check.one_of("split", split, self.splits))

    def example(self, split: str) -> PyTree[jax.ShapeDtypeStruct]:
        """Shapes and types of one row, for checking losses."""
        self.split_index(split)
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), self.data)

    def rows(self, client: int, split: str) -> Rows:
        """One client's rows of a split, as NumPy arrays."""
        s = self.split_index(split)
        start, count = int(self.offsets[s, client]), int(self.counts[s, client])
        return jax.tree.map(lambda a: np.asarray(a[start : start + count]), self.data)

    def only(self, *clients: int) -> "Population":
        """The same population with the rows of some clients alone, as their process holds it.

        The other clients have no rows; numbers, names and weights stay.

        >>> import numpy as np
        >>> Population.stacked(np.zeros((3, 5))).only(1).counts.tolist()
        [[0, 5, 0]]
        """
        rows = {c: {split: self.rows(c, split) for split in self.splits} for c in clients}
        return self.without_rows().with_rows(rows)

    def without_rows(self) -> "Population":
        """The same population without any row, for clients that hold their own."""
        none = np.zeros_like(np.asarray(self.counts))
        data = jax.tree.map(lambda a: np.asarray(a[:0]), self.data)
        weights = np.asarray(self.weights)
        return replace(self, data=data, offsets=none, counts=none, weights=weights, digest="")

    def with_rows(self, rows: Mapping[int, Mapping[str, Tree]]) -> "Population":
        """The same population with the given rows, as the process of these clients holds it.

        Args:
            rows: by client and split, pytrees of arrays like those of the population. No client
                may have more rows than ``largest`` says, where it is known.
        """
        offsets = np.zeros((len(self.splits), self.n_clients), np.int32)
        counts, parts, at = np.zeros_like(offsets), [], 0
        for client, own in rows.items():
            if set(own) != set(self.splits):
                raise ValueError(
                    f"{self.client_name(client)} needs rows of {self.splits}, got {tuple(own)}."
                )
            for s, split in enumerate(self.splits):
                count = common_length(own[split])
                if count == 0:
                    raise ValueError(no_rows(self.client_name(client), split))
                if self.has_rows and count > self.largest[s]:
                    raise ValueError(
                        f"{self.client_name(client)} has {count} rows in split {split!r}, but the "
                        f"server expects {self.largest[s]} of the largest client. The server must "
                        "know the sizes."
                    )
                jax.tree.map(partial(check_like, self.client_name(client)), self.data, own[split])
                parts.append(own[split])
                offsets[s, client], counts[s, client] = at, count
                at += count
        return Population(
            data=jax.tree.map(lambda a, *own: np.concatenate([a[:0], *own]), self.data, *parts),
            offsets=offsets,
            counts=counts,
            weights=np.asarray(self.weights),
            splits=self.splits,
            largest=self.largest if self.has_rows else tuple(int(c) for c in counts.max(axis=1)),
            names=self.names,
            encoded=self.encoded,
        )


def _field(name: str, rows: Rows) -> AnyArray:
    if not isinstance(rows, Mapping):
        raise TypeError(
            "the rows have no fields with names; pass a function from rows to labels as label."
        )
    return rows[check.one_of("field", name, rows)]
