package main

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/ratelimit/httplimit"
)

// A gateway answers most requests of its busiest clients with 429. With Ahead its processes decide that by themselves.
const (
	perClient = 1000 // requests of a client that are served in any window, by all processes of the gateway
	clients   = 3
)

// envGateway makes this program one process of the gateway; it uses envRedis and envFor as well.
const envGateway = "QUOTA_GATEWAY"

// gateway is what the processes of the gateway have answered.
type gateway struct{ served, refused int }

// answer starts the processes of the gateway, each with requests of all clients, and adds up what they have answered.
func answer(url string, length time.Duration) (all gateway, err error) {
	self, err := os.Executable()
	if err != nil {
		return all, err
	}
	for range processes {
		c := exec.Command(self)
		c.Env = append(os.Environ(), envGateway+"=1", envRedis+"="+url, envFor+"="+length.String())
		c.Stderr = os.Stderr
		out, pipeErr := c.StdoutPipe()
		if err = errors.Join(pipeErr, c.Start()); err != nil {
			break
		}
		defer func() {
			var one gateway
			_, scanErr := fmt.Fscan(bufio.NewReader(out), &one.served, &one.refused)
			err = errors.Join(err, scanErr, c.Wait())
			all.served, all.refused = all.served+one.served, all.refused+one.refused
		}()
	}
	return all, err
}

// serve is one process of the gateway, which is asked by each client as fast as it answers.
func serve(url, length string) error {
	d, err := time.ParseDuration(length)
	if err != nil {
		return err
	}
	k, end, err := connect(url)
	if err != nil {
		return err
	}
	defer end()
	key := func(r *http.Request) string { return r.Header.Get("Client") }
	limiter, err := httplimit.PerKey(k, "example:gateway", perClient, window, key, &ratelimit.Options{Ahead: true})
	if err != nil {
		return err
	}
	handler, err := httplimit.NewHandler(limiter, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil)
	if err != nil {
		return err
	}
	var counts [clients]gateway
	var all sync.WaitGroup
	until := time.Now().Add(d)
	for i := range clients {
		all.Go(func() {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("Client", strconv.Itoa(i))
			for time.Now().Before(until) {
				w := httptest.NewRecorder()
				if handler.ServeHTTP(w, r); w.Code == http.StatusOK {
					counts[i].served++
				} else {
					counts[i].refused++
				}
			}
		})
	}
	all.Wait()
	for _, c := range counts[1:] {
		counts[0].served, counts[0].refused = counts[0].served+c.served, counts[0].refused+c.refused
	}
	_, err = fmt.Println(counts[0].served, counts[0].refused)
	return err
}

// mayServe is how many requests of all clients may be served in so long a run: a whole limit at its beginning, and one in each window.
func mayServe(length time.Duration) int {
	return clients * perClient * (1 + int((length+window-1)/window))
}
