//! Lets the linker leave the runtime's Node-API symbols open.

fn main() {
    napi_build::setup();
}
