//! Log lines: text, or one JSON object each.

use std::io::Write;

use env_logger::{Builder, Env};
use log::{Level, log_enabled};
use serde_json::json;
use serde_json::value::RawValue;
use tollgate_api::{AccessLine, AccessLog};

use crate::config::LogFormat;

/// The target of access lines, for `RUST_LOG`.
const ACCESS: &str = "tollgate::access";

/// The default filter. It hides actix's error for each answer that breaks off, which is logged already.
const QUIET: &str = "info,actix_server=warn,actix_http::h1::dispatcher=off";

/// Starts the log of a service, on standard error. `RUST_LOG` sets the filter; the default level is information.
pub(crate) fn start(format: LogFormat) {
    let mut builder = Builder::from_env(Env::default().default_filter_or(QUIET));
    if format == LogFormat::Json {
        builder.format(|out, record| {
            let message = record.args().to_string();
            // An access line is an object already.
            let request = (record.target() == ACCESS)
                .then(|| serde_json::from_str::<Box<RawValue>>(&message).ok())
                .flatten();
            let mut line = json!({
                "time": out.timestamp_millis().to_string(),
                "level": record.level().as_str(),
                "target": record.target(),
            });
            if let Some(fields) = line.as_object_mut() {
                match request {
                    Some(request) => fields.insert("request".to_owned(), json!(request)),
                    None => fields.insert("message".to_owned(), json!(message)),
                };
            }
            writeln!(out, "{line}")
        });
    }
    // It fails only if a logger is set already. That one is then used.
    let _ = builder.try_init();
}

/// Prints the warnings of a command to standard error, and the causes of errors of the API. `RUST_LOG` sets another filter.
pub(crate) fn start_for_command() {
    let filter = "warn,tollgate_api::http::error=debug";
    let mut builder = Builder::from_env(Env::default().default_filter_or(filter));
    builder.format(|out, record| {
        let word = if record.level() <= Level::Warn { "warning" } else { "note" };
        writeln!(out, "{word}: {}", record.args())
    });
    let _ = builder.try_init();
}

/// The function that writes the access line of a request.
pub(crate) fn access(format: LogFormat) -> AccessLog {
    match format {
        LogFormat::Text => |line: &AccessLine| log::info!(target: ACCESS, "{line}"),
        LogFormat::Json => |line: &AccessLine| {
            if log_enabled!(target: ACCESS, Level::Info)
                && let Ok(line) = serde_json::to_string(line)
            {
                log::info!(target: ACCESS, "{line}");
            }
        },
    }
}
