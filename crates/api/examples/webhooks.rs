//! Prints the page `docs/features/webhook-messages.md`.

fn main() {
    print!("{}", tollgate_api::WebhookMessagesDoc);
}
