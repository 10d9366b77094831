# syntax=docker/dockerfile:1
# A small image of one program, which runs as nobody and has no shell. Build it with the commit that it is of:
#   docker build --build-arg COMMIT=$(git rev-parse --short=12 HEAD) -t tollgate .
# Bases are pinned by version; pin them by digest where you publish.
ARG RUST_VERSION=1.90

FROM rust:${RUST_VERSION}-bookworm AS build
WORKDIR /src
COPY . .
ARG COMMIT=""
ENV BUILD_COMMIT=${COMMIT} CARGO_TERM_COLOR=never
# What cargo downloads and builds is kept between builds, so the program is copied out of it.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --profile dist --locked -p tollgate \
    && install -D target/dist/tollgate /out/usr/local/bin/tollgate \
    && strip /out/usr/local/bin/tollgate \
    && install -d -m 0750 -o 65532 -g 65532 /out/var/lib/tollgate \
    && install -D -m 0644 -t /out/usr/share/doc/tollgate LICENSE-MIT LICENSE-APACHE

# glibc, certificates, and a user without rights (65532); no shell.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build --chown=65532:65532 /out/var/lib /var/lib
COPY --from=build /out/usr /usr
USER 65532:65532
WORKDIR /var/lib/tollgate
# SQLite, journal and log of the ledger. On PostgreSQL the journal, which must survive, too.
VOLUME /var/lib/tollgate
ENV TOLLGATE_LISTEN=0.0.0.0:8080 \
    TOLLGATE_DATABASE_URL=sqlite:/var/lib/tollgate/tollgate.db \
    TOLLGATE_JOURNAL_DIR=/var/lib/tollgate/journal
EXPOSE 8080
# It takes no new calls from SIGTERM on and ends within drain_timeout_ms and 15 s.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=15s CMD ["/usr/local/bin/tollgate", "health"]
ENTRYPOINT ["/usr/local/bin/tollgate"]
CMD ["serve"]
