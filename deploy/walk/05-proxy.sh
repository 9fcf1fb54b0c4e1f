#!/bin/sh
# Step 5: nginx, for the nodes with TLS and for the database.
set -eu
. "$(dirname "$0")/settings.sh"

mkdir -p "$WALK/nginx"
echo "server localhost:$PRIMARY_PORT;" > "$WALK/nginx/primary.conf"
cat > "$WALK/nginx/nginx.conf" <<END
load_module modules/ngx_stream_module.so;
pid $WALK/run/nginx.pid;
error_log $WALK/log/nginx.log;
worker_shutdown_timeout 60s;
events { worker_connections 4096; }

stream {
  upstream database { include $WALK/nginx/primary.conf; }
  server {
    listen localhost:$DATABASE_PORT so_keepalive=on;
    proxy_pass database;
    proxy_connect_timeout 3s;
    proxy_timeout 1h;
  }
}

http {
  access_log $WALK/log/access.log;
  client_body_temp_path $WALK/nginx/body;
  proxy_temp_path $WALK/nginx/proxy;
  fastcgi_temp_path $WALK/nginx/fastcgi;
  uwsgi_temp_path $WALK/nginx/uwsgi;
  scgi_temp_path $WALK/nginx/scgi;

  upstream nuncio {
    server 127.0.0.1:$NODE_PORT max_fails=0;
    server 127.0.0.1:$((NODE_PORT + 1)) max_fails=0;
    server 127.0.0.1:$((NODE_PORT + 2)) max_fails=0;
    keepalive 64;
  }
  server {
    listen 127.0.0.1:$HTTP_PORT;
    server_name localhost;
    return 301 https://localhost:$HTTPS_PORT\$request_uri;
  }
  server {
    listen 127.0.0.1:$HTTPS_PORT ssl http2;
    server_name localhost;
    ssl_certificate $WALK/tls/certificate.pem;
    ssl_certificate_key $WALK/tls/key.pem;
    ssl_protocols TLSv1.2 TLSv1.3;
    client_max_body_size 16m;
    location = /metrics { return 404; }
    location / {
      proxy_pass http://nuncio;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host \$host;
      proxy_set_header X-Forwarded-For \$remote_addr;
      proxy_buffering off;
      proxy_buffer_size 32k;
      proxy_buffers 8 32k;
      proxy_connect_timeout 2s;
      proxy_read_timeout 75s;
    }
  }
}
END
nginx -e "$WALK/log/nginx.log" -c "$WALK/nginx/nginx.conf" -t
nginx -e "$WALK/log/nginx.log" -c "$WALK/nginx/nginx.conf"
psql --port="$DATABASE_PORT" --command="select pg_is_in_recovery()"
