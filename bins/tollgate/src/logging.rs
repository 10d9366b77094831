//! Log lines: for people, or one JSON object each.

use std::io::Write;

use env_logger::{Builder, Env};
use serde_json::json;

use crate::config::LogFormat;

/// Starts logging to standard error; `RUST_LOG` chooses what, information by default.
pub(crate) fn start(format: LogFormat) {
    let mut builder = Builder::from_env(Env::default().default_filter_or("info,actix_server=warn"));
    if format == LogFormat::Json {
        builder.format(|out, record| {
            let line = json!({
                "time": out.timestamp_millis().to_string(),
                "level": record.level().as_str(),
                "target": record.target(),
                "message": record.args().to_string(),
            });
            writeln!(out, "{line}")
        });
    }
    // Somebody else's logger is as good as ours.
    let _ = builder.try_init();
}
