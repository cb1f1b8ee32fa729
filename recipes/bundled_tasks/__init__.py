"""The bundled tasks ``arith`` and ``choice``: seeded generators and their train/test split."""

from bundled_tasks.generator import LETTERS, document, items, split_of, training_documents

__all__ = ["LETTERS", "document", "items", "split_of", "training_documents"]
