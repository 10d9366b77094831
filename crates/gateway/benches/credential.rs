//! Measures the time to read a credential and check its format.

use std::hint::black_box;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use criterion::{Criterion, criterion_group, criterion_main};
use tollgate_domain::{Key, KeyKind};
use tollgate_gateway::credential_hash;

fn a_credential(c: &mut Criterion) {
    let key = Key::generate(KeyKind::Secret, tollgate_domain::CellNumber::default());
    let key = key.reveal();
    let token = STANDARD.encode(format!(
        "{{\"secret_key\":\"{key}\",\"connection_id\":\"con_01K5QJ4X0000000000000000AB\",\
         \"meter_slug\":\"standard\"}}"
    ));
    for (name, shown) in [("forward token", token.as_str()), ("bare key", key)] {
        c.bench_function(name, |b| b.iter(|| credential_hash(black_box(shown))));
    }
}

criterion_group!(benches, a_credential);
criterion_main!(benches);
