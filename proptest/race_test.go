//go:build race

package proptest

// The race detector makes a schedule cost ten times as much, and one schedule shows it as much as many.
func init() { few = 4 }
