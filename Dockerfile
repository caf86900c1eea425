# The engine in a container. Built without network from wheels collected on the host: `ninfer image build`, which lays
# out the context as wheels/dependencies/*.whl (pip among them) and wheels/ninfer/*.whl. Classic builder syntax.
# BASE_IMAGE: any image with python3 3.11; pip and venv's ensurepip are not needed in it.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS dependencies
COPY wheels/dependencies/ /wheels/dependencies/
# Bytecode is compiled now, because the root is read-only when the engine runs. Headers, tests and tools of torch serve
# only compilers, which the image does not have; KEEP_HEADERS=1 keeps them.
ARG KEEP_HEADERS=0
RUN pip=$(echo /wheels/dependencies/pip-*.whl)/pip \
 && python3 -m venv --without-pip /opt/ninfer \
 && python3 "$pip" --python /opt/ninfer/bin/python install --no-index --no-cache-dir \
      --disable-pip-version-check --root-user-action ignore --find-links /wheels/dependencies \
      -r /wheels/dependencies/requirements.txt \
 && if [ "$KEEP_HEADERS" = 0 ]; then cd /opt/ninfer/lib/python3*/site-packages \
 && rm -rf torch/include torch/test torch/share \
 && find torch/bin -type f ! -name torch_shm_manager -delete; fi

# The engine itself is a layer of its own: a change of code neither installs nor copies torch again.
FROM dependencies AS engine
COPY wheels/ninfer/ /wheels/ninfer/
RUN pip=$(echo /wheels/dependencies/pip-*.whl)/pip \
 && python3 "$pip" --python /opt/ninfer/bin/python install --no-index --no-deps --no-cache-dir --prefix /opt/own \
      --disable-pip-version-check --root-user-action ignore /wheels/ninfer/*.whl

FROM ${BASE_IMAGE}
RUN echo 'ninfer:x:10001:10001:ninfer:/tmp:/usr/sbin/nologin' >> /etc/passwd \
 && echo 'ninfer:x:10001:' >> /etc/group \
 && mkdir -p /model /var/lib/ninfer/store /var/lib/ninfer/log \
 && chown 10001:10001 /var/lib/ninfer/store /var/lib/ninfer/log
COPY --from=dependencies /opt/ninfer /opt/ninfer
COPY --from=engine /opt/own /opt/ninfer
# Threads follow the container's cpu limit: the host sets OMP_NUM_THREADS where the profile sets host.cpus.
ENV PATH=/opt/ninfer/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp USER=ninfer
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s --retries=3 \
  CMD ["/opt/ninfer/bin/python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
ENTRYPOINT ["/opt/ninfer/bin/ninfer-engine"]
CMD ["serve", "--help"]
