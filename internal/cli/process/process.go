// Package process starts, signals and waits for the processes of commands, on systems with and without process groups.
package process
