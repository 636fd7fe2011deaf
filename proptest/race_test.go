//go:build race

package proptest

// The race detector makes a schedule cost ten times as much, and looks at what the program does, not at how often.
func init() { few = 4 }
