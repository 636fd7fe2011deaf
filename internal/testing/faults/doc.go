// Package faults injects faults into real servers, connections and processes while locks are in use, and checks what
// their users observed. It contains only tests.
//
// internal/testing/conformance tests each primitive under single faults. Here many processes use all primitives at
// once: on servers that fail over, with slots that migrate, and for any duration with random faults (TestSoak).
//
// Every use of a lock is a span of a history: when it was requested, granted, and released. The main checker sweeps
// over the spans: at no moment may more be held than the capacity. In addition fences must rise, and
// github.com/anishathalye/porcupine looks for an order of all grants and releases that explains the history. Each
// checker is tested with locks that are broken on purpose.
package faults
