//! The Working Draft's transactions over several stores, readonly (shared) and readwrite
//! (exclusive), as Indexed DB has them: each transaction takes all its stores at once, so no order
//! of asking can deadlock.
//!
//! ```text
//! cargo run --release --example multi_store_transaction
//! ```

use lockkeeper::{Error, Locks, Mode};
use std::{cell::Cell, collections::HashMap};

fn main() -> Result<(), Error> {
    smol::block_on(async {
        let locks = Locks::new();
        let accounts = HashMap::from(["alice", "bob", "carol"].map(|name| (name, Cell::new(100))));

        let transfer = async |from: &'static str, to: &'static str, amount: i32| {
            // Both accounts are written to, the rates are only read.
            let scope = [(from, Mode::Exclusive), (to, Mode::Exclusive), ("rates", Mode::Shared)];
            let transaction = locks.request(scope).info(format!("{from} pays {to} {amount}"));
            transaction
                .run(async |lock| {
                    let balance = accounts[from].get();
                    smol::future::yield_now().await;
                    accounts[from].set(balance - amount);
                    accounts[to].set(accounts[to].get() + amount);
                    println!("{from} pays {to} {amount}, token {}", lock.token());
                })
                .await
        };

        // In a circle: with one lock after the other these three would soon wait for each other for
        // ever.
        let circle = async || {
            let ab = transfer("alice", "bob", 10);
            let bc = transfer("bob", "carol", 20);
            let ca = transfer("carol", "alice", 30);
            smol::future::try_zip(ab, smol::future::try_zip(bc, ca)).await
        };
        for _ in 0..3 {
            circle().await?;
        }
        let total: i32 = accounts.values().map(Cell::get).sum();
        println!("balances: {:?}", ["alice", "bob", "carol"].map(|name| (name, accounts[name].get())));
        assert_eq!(total, 300);
        assert!(locks.query().await?.held.is_empty());
        Ok(())
    })
}
