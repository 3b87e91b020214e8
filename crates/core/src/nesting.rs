//! The declared nesting of requests, which deadlock reports follow.
//!
//! It is stored apart from the requests, so that requests without nesting have no cost.

use crate::slab::{NIL, Slab};

pub(crate) struct Nesting {
    nodes: Slab<Node>,
    /// The first of the nodes that are nested in another: a search need not pass over the others,
    /// nor over free places.
    first_nested: u32,
}

/// A request that is nested in another, or has another nested in it. Links are to other nodes.
struct Node {
    request: u32,
    outer: u32,
    first_inner: u32,
    /// Neighbours among those nested in the same outer request.
    prev: u32,
    next: u32,
    /// Neighbours among all that are nested.
    prev_nested: u32,
    next_nested: u32,
}

impl Nesting {
    pub(crate) const fn new() -> Self {
        Self { nodes: Slab::new(), first_nested: NIL }
    }

    /// How many bytes it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.nodes.bytes()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.len() == 0
    }

    pub(crate) fn insert(&mut self, request: u32) -> u32 {
        self.nodes.insert(Node {
            request,
            outer: NIL,
            first_inner: NIL,
            prev: NIL,
            next: NIL,
            prev_nested: NIL,
            next_nested: NIL,
        })
    }

    /// Declares the new node `inner` to be within `outer`.
    pub(crate) fn nest(&mut self, inner: u32, outer: u32) {
        let next = core::mem::replace(&mut self.nodes[outer].first_inner, inner);
        if let Some(next) = self.nodes.get_mut(next) {
            next.prev = inner;
        }
        let next_nested = core::mem::replace(&mut self.first_nested, inner);
        if let Some(next) = self.nodes.get_mut(next_nested) {
            next.prev_nested = inner;
        }
        let node = &mut self.nodes[inner];
        (node.outer, node.next, node.next_nested) = (outer, next, next_nested);
    }

    /// Takes a node that is nested in nothing from now on out of the list of those that are.
    fn unlist(&mut self, prev: u32, next: u32) {
        match self.nodes.get_mut(prev) {
            Some(prev) => prev.next_nested = next,
            None => self.first_nested = next,
        }
        if let Some(next) = self.nodes.get_mut(next) {
            next.prev_nested = prev;
        }
    }

    /// Forgets a request that ends. What was nested in it is nested in nothing from now on.
    pub(crate) fn remove(&mut self, node: u32) {
        let Node { outer, first_inner, prev, next, prev_nested, next_nested, .. } = self.nodes.remove(node);
        if outer != NIL {
            self.unlist(prev_nested, next_nested);
        }
        match (self.nodes.get_mut(prev), outer) {
            (Some(prev), _) => prev.next = next,
            (None, NIL) => {}
            (None, outer) => self.nodes[outer].first_inner = next,
        }
        if let Some(next) = self.nodes.get_mut(next) {
            next.prev = prev;
        }
        let mut inner = first_inner;
        while let Some(node) = self.nodes.get_mut(inner) {
            inner = core::mem::replace(&mut node.next, NIL);
            (node.outer, node.prev) = (NIL, NIL);
            let prev = core::mem::replace(&mut node.prev_nested, NIL);
            let next = core::mem::replace(&mut node.next_nested, NIL);
            self.unlist(prev, next);
        }
    }

    /// The request within which the node's request was made.
    pub(crate) fn outer(&self, node: u32) -> Option<u32> {
        let node = self.nodes.get(node)?;
        Some(self.nodes.get(node.outer)?.request)
    }

    /// The requests nested directly in the node's request.
    pub(crate) fn inner(&self, node: u32) -> impl Iterator<Item = u32> {
        let first = self.nodes.get(node).and_then(|node| self.nodes.get(node.first_inner));
        core::iter::successors(first, |node| self.nodes.get(node.next)).map(|node| node.request)
    }

    /// Every request that is nested in another, the last first.
    pub(crate) fn nested(&self) -> impl Iterator<Item = u32> {
        let first = self.nodes.get(self.first_nested);
        core::iter::successors(first, |node| self.nodes.get(node.next_nested)).map(|node| node.request)
    }
}
