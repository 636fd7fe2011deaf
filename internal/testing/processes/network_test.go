package processes

import (
	"context"
	"net"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
)

// TestDownWhileDialing checks that a connection that was being opened while the network went down is closed.
func TestDownWhileDialing(t *testing.T) {
	ours, theirs := net.Pipe()
	defer func() { _ = theirs.Close() }()
	dialling, proceed := make(chan struct{}), make(chan struct{})
	n := faultnet.New(func(context.Context, string, string) (net.Conn, error) {
		close(dialling)
		<-proceed
		return ours, nil
	})
	done := make(chan error)
	go func() {
		_, err := n.Dial(context.Background(), "tcp", "x")
		done <- err
	}()
	<-dialling
	n.Down()
	close(proceed)
	if err := <-done; err == nil {
		t.Fatal("Dial succeeded")
	}
	if _, err := ours.Write([]byte("x")); err == nil {
		t.Error("the connection was left open")
	}
}
