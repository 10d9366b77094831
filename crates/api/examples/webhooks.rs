//! Prints the last chapter of `docs/WEBHOOKS.md`.

fn main() {
    print!("{}", tollgate_api::WebhookMessagesDoc);
}
