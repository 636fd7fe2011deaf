// Package faults breaks real servers, connections and processes under locks that are in use, and judges by what the
// users of the locks saw. It holds tests only.
//
// What each primitive does in a fault by itself is in internal/testing/conformance. Here many use all of them at once: on servers
// that fail over, slots that move, and for as long as one likes, with faults drawn at random (TestSoak).
//
// Every use of a lock is a span of a history: when it was asked for, granted, and given back. The main judge is a sweep
// over the spans: at no moment may more be held than there is. Beside it, fences must rise, and
// github.com/anishathalye/porcupine looks for one order of all grants and releases that explains the history. Each judge
// is shown locks that are broken on purpose, and has to say so.
package faults
