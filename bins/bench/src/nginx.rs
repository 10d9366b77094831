//! The baseline: nginx as a plain reverse proxy, tuned for streams or with its defaults.

use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::bail;
use tokio::net::TcpStream;

use crate::program::ChildProgram;

/// How nginx passes bodies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Buffering {
    /// As they come, in pieces of up to 64 KB.
    Off,
    /// As nginx does by default.
    Default,
}

impl Buffering {
    pub(crate) const ALL: [Self; 2] = [Self::Off, Self::Default];

    const fn settings(self) -> &'static str {
        match self {
            Self::Off => {
                "proxy_buffering off; proxy_request_buffering off; proxy_buffer_size 64k; \
                 proxy_buffers 4 64k;"
            }
            Self::Default => "",
        }
    }
}

impl fmt::Display for Buffering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "nginx",
            Self::Default => "nginx, defaults",
        })
    }
}

/// Where nginx is, if it is anywhere.
pub(crate) fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders =
        std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    folders.map(|folder| folder.join("nginx")).find(|program| program.is_file())
}

/// Starts nginx before `provider` and waits until it listens.
pub(crate) async fn start(
    nginx: &Path,
    provider: &str,
    folder: &Path,
    buffering: Buffering,
) -> anyhow::Result<(ChildProgram, SocketAddr)> {
    // It cannot say which port it took, so it is given one that is free now.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let folder = folder.join(format!("nginx-{buffering:?}"));
    std::fs::create_dir(&folder)?;
    let config = folder.join("nginx.conf");
    std::fs::write(&config, configuration(address, provider, &folder, buffering))?;
    let mut command = Command::new(nginx);
    command.arg("-e").arg(folder.join("error.log")).arg("-p").arg(&folder).arg("-c").arg(config);
    let mut program = ChildProgram::start("nginx", &mut command, &folder)?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(address).await.is_err() {
        program.expect_running()?;
        if Instant::now() > deadline {
            bail!("nginx does not listen on {address}\n{}", program.log());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok((program, address))
}

/// Connections are kept on both sides, as they are by what it is compared with.
fn configuration(
    listen: SocketAddr,
    provider: &str,
    folder: &Path,
    buffering: Buffering,
) -> String {
    let (folder, buffering) = (folder.display(), buffering.settings());
    format!(
        "daemon off;
worker_processes 2;
pid {folder}/pid;
error_log {folder}/error.log error;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/client_body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_timeout 300s;
    keepalive_requests 1000000000;
    upstream provider {{
        server {provider};
        keepalive 256;
        keepalive_timeout 300s;
        keepalive_requests 1000000000;
    }}
    server {{
        listen {listen};
        location / {{
            proxy_pass http://provider;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            {buffering}
            client_max_body_size 0;
        }}
    }}
}}
"
    )
}
