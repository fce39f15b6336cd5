// Package markerstest is the contract of markers.Sink as a test, for those that
// carry markers to other processes. Whoever writes such a transport runs it:
//
//	func TestTransport(t *testing.T) {
//		markerstest.Run(t, markerstest.Harness{Open: func(t testing.TB, c *markerstest.Cluster) *markerstest.Transport {
//			... // a sender, and behind the transport c.Broker(1) and c.Broker(2)
//			return &markerstest.Transport{Sink: sink}
//		}})
//	}
//
// The receiving end is a Cluster: participants in memory that can be told to
// refuse, to hang, to move, to lose an answer, to die. What a transport's
// receiving end hands deliveries to is a Broker of it, which is a markers.Sink;
// or, where the transport ends in package wire, the logs of a Broker.
//
// Each case is a subtest that is named as a sentence, and a failure quotes the
// words of the Sink's comment that it guards. The more of a Transport is filled
// in, the more is tested.
//
// The package imports testing, so production code does not import it.
package markerstest
