-- The amounts that merchants have to collect from their customers for plans and bought credit; never updated.
-- Each is one of an event, which is deleted when it is old.
CREATE TABLE plan_charges (
    -- The wallet of the customer.
    wallet_id       BLOB NOT NULL REFERENCES wallets,
    -- The time of effect.
    charged_at      BIGINT NOT NULL,
    event_id        BLOB NOT NULL,
    merchant_id     BLOB NOT NULL REFERENCES merchants,
    subscription_id BLOB NOT NULL REFERENCES subscriptions,
    -- The kind of the event.
    kind            TEXT NOT NULL,
    -- The name of the plan or of the bundle at that time.
    name            TEXT NOT NULL,
    amount          BIGINT NOT NULL CHECK (amount > 0),
    PRIMARY KEY (wallet_id, charged_at, event_id)
) WITHOUT ROWID;
