package lockkeeper_test

import (
	crypto "crypto/rand"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
)

// restored starts a process with what a snapshot would have: whatever processes draw until it returns, all draw the same. Its keeper has
// locked once, and is subscribed.
func (b *bubble) restored() *process {
	b.Helper()
	kernel := crypto.Reader
	crypto.Reader = rand.NewChaCha8([32]byte{})
	p := b.process()
	b.must(p.hold("warm").Release(background))
	synctest.Wait()
	crypto.Reader = kernel
	return p
}

// copied returns two copies of one process. The second one has found its connections broken, and connected again.
func (b *bubble) copied() (p, twin *process) {
	b.Helper()
	p, twin = b.restored(), b.restored()
	channels := b.Mini.PubSubChannels("lock:wake:*")
	check.That(b, p.ID() == twin.ID() && len(channels) == 1 && b.Mini.PubSubNumSub(channels[0])[channels[0]] == 2,
		"they are no copies: keepers %s and %s, channels %q", p.ID(), twin.ID(), channels)
	twin.net.Cut()
	lease := twin.hold("warm") // by the address that both have
	synctest.Wait()
	b.must(lease.Release(background))
	time.Sleep(10 * time.Second)
	n := b.Mini.PubSubNumSub(channels[0])[channels[0]]
	check.That(b, n == 1 && len(b.Mini.PubSubChannels("lock:wake:*")) == 2, "%d are subscribed to %q", n, channels)
	return p, twin
}

// TestCopiesOfProcess checks that two processes which were restored from one snapshot get different leases, and each its own.
func TestCopiesOfProcess(t *testing.T) {
	inBubble(t, func(b *bubble) {
		p, twin := b.copied()
		fence := uint64(0)
		for range 20 {
			lease := p.hold("x")
			same, err := twin.mutex("x").TryLock(background)
			check.That(b, same == nil && errors.Is(err, lockkeeper.ErrNotAcquired) && lease.Fence() > fence, "both hold %q, fence %d after %d: %v", lease.Token(), lease.Fence(), fence, err)
			fence = lease.Fence()
			b.must(lease.Release(background))
			p, twin = twin, p
		}
		first := b.process().hold("x")
		got, gotTwin := p.lockAsync("x"), twin.lockAsync("x")
		b.must(first.Release(background))
		synctest.Wait()
		check.That(b, len(got) == 1 && len(gotTwin) == 0, "%d and %d leases for the first and its copy", len(got), len(gotTwin))
		lease := <-got
		b.must(lease.Release(background))
		synctest.Wait()
		check.That(b, len(gotTwin) == 1, "no lease for the copy when the first has released its own")
		b.must((<-gotTwin).Release(background))
	})
}

// TestCloseOfCopy checks that it ends neither leases nor waits of the other one, also while both are subscribed to one channel.
func TestCloseOfCopy(t *testing.T) {
	for name, copies := range map[string]func(b *bubble) (p, twin *process){
		"on one channel":  func(b *bubble) (p, twin *process) { return b.restored(), b.restored() },
		"on two channels": (*bubble).copied,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				p, twin := copies(b)
				lease, first := p.hold("held"), b.process().hold("x")
				got := p.lockAsync("x")
				ended := make(chan error, 1)
				go func() {
					_, err := twin.mutex("x").Lock(background)
					ended <- err
				}()
				synctest.Wait()
				b.must(twin.Close())
				check.That(b, errors.Is(<-ended, lockkeeper.ErrClosed), "the wait of the copy goes on")
				b.must(first.Release(background))
				synctest.Wait()
				check.That(b, len(got) == 1, "the waiter did not get its turn")
				holder, held, err := p.mutex("held").Holder(background)
				check.That(b, err == nil && held && holder.Token == lease.Token() && lease.Err() == nil, "the lease has ended: %+v, %v, %v", holder, err, lease.Err())
				b.must((<-got).Release(background))
				b.must(lease.Release(background))
			})
		})
	}
}

// TestDeadCopyIsPassedOver checks that a process which has died costs the others nothing while its copy is subscribed.
func TestDeadCopyIsPassedOver(t *testing.T) {
	inBubble(t, func(b *bubble) {
		p, twin := b.copied()
		first := b.process().hold("x")
		dead := p.lockAsync("x")
		got := twin.lockAsync("x")
		p.net.Down()
		synctest.Wait()
		b.must(first.Release(background))
		synctest.Wait()
		check.That(b, len(got) == 1, "the dead process has the turn")
		p.net.Restore()
		b.must((<-got).Release(background))
		b.must((<-dead).Release(background))
	})
}
