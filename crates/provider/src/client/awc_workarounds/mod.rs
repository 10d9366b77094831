//! The workarounds of awc. Each goes when its upstream issue is solved.
//!
//! | What awc does | What stands here | Upstream |
//! |---|---|---|
//! | It takes an interim head for the answer | [`interim`] removes these heads | [actix-web 1775] |
//! | It takes a body without a length for empty | [`head`] marks its end | [actix-web 2287] |
//! | It takes a cut body for a whole one | [`stream`] makes an end an error | none found |
//! | It does not say whether a call was written | [`body`] notes the first piece | none found |
//! | It panics without a crypto provider | [`install_crypto_provider`] | [actix-web 3362] |
//!
//! actix-web 1775 and 2287 are closed, but their cases are the same in actix-http 3.20.
//!
//! [actix-web 1775]: https://github.com/actix/actix-web/issues/1775
//! [actix-web 2287]: https://github.com/actix/actix-web/issues/2287
//! [actix-web 3362]: https://github.com/actix/actix-web/pull/3362

mod body;
mod head;
mod interim;
mod stream;

use rustls::crypto::ring;

pub(super) use self::body::CountedBody;
pub(super) use self::stream::{CleanClose, ProviderStream};

/// Installs a crypto provider, unless the process has one.
///
/// awc makes a TLS configuration of its own before it takes ours, and panics without a provider.
pub(super) fn install_crypto_provider() {
    let _ = ring::default_provider().install_default();
}
