"""Where bytes live: KV pages, state images, the host tier and the durable store. Refcounts and bytes, no policy.

pages.py   KV pages on device and host          images.py  state images in device and host slots
audit.py   nothing is lost, nothing held twice  store/     the durable tier
"""
