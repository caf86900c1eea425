"""The durable tier: sessions on disk, content-addressed, verified while read. Decision 0003 says why it is LMDB.

durable.py    DurableStore, what callers use        manifest.py  what a session is on disk
digests.py    names of objects                      envelope.py  a manifest, sealed and signed
objects.py    bytes in pieces and their entries     sessions.py  manifests in tables, references derived
database.py   LMDB, its transactions and errors     place.py     directory, writer's lock, quarantine
collect.py    collection and quota                  archive.py   export and import
"""
