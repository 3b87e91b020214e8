//! The Working Draft's document editor: a document is open in two tabs; both may read it at once,
//! one at a time may write, and a tab that hangs with the document locked can be preempted.
//!
//! ```text
//! cargo run --release --example document_editor
//! ```

use lockkeeper::{Error, Locks};
use smol::future;
use std::{sync::Mutex, time::Duration};

fn main() -> Result<(), Error> {
    smol::block_on(async {
        let locks = Locks::new();
        let document = Mutex::new(String::from("Once"));

        let write = async |tab: &str, text: &str| {
            locks
                .request("document")
                .run(async |lock| {
                    println!("{tab} writes with token {}", lock.token());
                    let before = document.lock().expect("no tab panics").clone();
                    // Another tab gets its chance to step in. It does not.
                    future::yield_now().await;
                    *document.lock().expect("no tab panics") = before + text;
                })
                .await
        };
        let read = async |tab: &str| {
            let text = locks.request("document").shared().run(async |_| {
                future::yield_now().await;
                document.lock().expect("no tab panics").clone()
            });
            println!("{tab} reads {:?}", text.await?);
            Ok::<_, Error>(())
        };

        let writes = future::try_zip(write("tab 1", " upon"), write("tab 2", " a time"));
        let reads = future::try_zip(read("tab 1"), read("tab 2"));
        future::try_zip(writes, reads).await?;
        assert_eq!(*document.lock().expect("no tab panics"), "Once upon a time");

        // Tab 1 hangs while it holds the document. Tab 2 waits for a while, then takes it.
        let hangs = locks.request("document").run(async |_| future::pending::<()>().await);
        let steals = async {
            let waited = locks.request("document").timeout(Duration::from_millis(100)).acquire().await;
            println!("tab 2: {}", waited.expect_err("tab 1 does not let go"));
            let stolen = locks.request("document").steal().acquire().await?;
            println!("tab 2 has it now, with token {}", stolen.token());
            Ok::<_, Error>(())
        };
        let (preempted, stolen) = future::zip(hangs, steals).await;
        println!("tab 1: {}", preempted.expect_err("the lock of tab 1 was stolen"));
        stolen
    })
}
