// Package imports has a test of meshes in the style of the Gateway API's conformance suite, which lacks one:
// ServiceImports as backends of an HTTPRoute (GEP-1748, kubernetes-sigs/gateway-api#4789).
package imports

import (
	"embed"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/gateway-api/conformance"
	"sigs.k8s.io/gateway-api/conformance/utils/echo"
	"sigs.k8s.io/gateway-api/conformance/utils/http"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/gateway-api/pkg/features"
)

//go:embed mesh-serviceimport.yaml
var manifests embed.FS

var MeshServiceImport = suite.ConformanceTest{
	ShortName:   "MeshServiceImport",
	Description: "An HTTPRoute of a mesh sends requests to the exporters of a ServiceImport that is a backendRef",
	Features: []features.FeatureName{
		features.SupportMesh,
		features.SupportHTTPRoute,
	},
	Manifests: []string{"mesh-serviceimport.yaml"},
	Test: func(t *testing.T, s *suite.ConformanceTestSuite) {
		client := echo.ConnectToApp(t, s, echo.MeshAppEchoV1)
		cases := []http.ExpectedResponse{
			{
				TestCaseName: "a ServiceImport of echo-v2 is answered by the pods of echo-v2",
				Request:      http.Request{Host: "echo", Method: "GET", Path: "/import"},
				Response:     http.Response{StatusCode: 200},
				Backend:      "echo-v2",
			},
			{
				TestCaseName: "a weight of zero sends a ServiceImport nothing",
				Request:      http.Request{Host: "echo", Method: "GET", Path: "/weights"},
				Response:     http.Response{StatusCode: 200},
				Backend:      "echo-v1",
			},
			{
				TestCaseName: "a ServiceImport that does not exist is answered with 500",
				Request:      http.Request{Host: "echo", Method: "GET", Path: "/missing"},
				Response:     http.Response{StatusCode: 500},
			},
		}
		for i := range cases {
			tc := cases[i]
			t.Run(tc.GetTestCaseName(i), func(t *testing.T) {
				client.MakeRequestAndExpectEventuallyConsistentResponse(t, tc, s.TimeoutConfig)
			})
		}
	},
}

// TestServiceImports runs this test alone, with the suite's own setup and flags.
func TestServiceImports(t *testing.T) {
	options := conformance.DefaultOptions(t)
	options.ManifestFS = append(options.ManifestFS, &manifests)
	tests := []suite.ConformanceTest{MeshServiceImport}
	s, err := suite.NewConformanceTestSuite(options)
	require.NoError(t, err)
	s.Setup(t, tests)
	require.NoError(t, s.Run(t, tests))
}
