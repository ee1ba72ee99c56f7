// A plugin for DCGM's nvvs whose tests answer what a file says: levels 2 to 4 of a diagnostic without a GPU.
//
//   for DCGM's releases 4.3 to 4.6 (plugin interface 7), with its sources, and for each CUDA (11, 12, 13):
//   g++ -std=c++23 -shared -fPIC -I SOURCES/{dcgmlib,nvvs/include,sdk/nvidia/inc,sdk/nvidia/nvml,common} -I CUDA/include -I PLOG/include \
//       tests/support/nodes/nvvs_plugin.cpp -o PLUGINS/cuda12/libScripted.so.4
//
// The file is $SENTINEL_NVVS_SCRIPT of the host engine, or /etc/sentinel-nvvs-script. Its lines, test by test (what is not named
// passes); GPUs by DCGM's numbers:
//
//   memory fail 3 52 word word     GPU 3 fails with error 52 and this text; the others pass
//   pcie skip                      skipped on all GPUs
//   memory sleep 30                runs so many seconds, and ends when told to
//   memory hang                    never ends, whatever it is told
//   nvbandwidth absent             nvvs has no such test: its plugin is missing
#include <PluginInterface.h>

#include <csignal>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct Offered { char const *name, *category; };
constexpr Offered TESTS[] = {
    {"memory", "Hardware"}, {"pcie", "Integration"}, {"diagnostic", "Hardware"}, {"nvbandwidth", "Hardware"},
    {"memory_bandwidth", "Stress"}, {"targeted_stress", "Stress"}, {"targeted_power", "Stress"}, {"memtest", "Stress"},
    {"pulse_test", "Hardware"},
};

std::map<std::string, std::string> script() // test → what it does
{
    char const *path = std::getenv("SENTINEL_NVVS_SCRIPT");
    std::ifstream file(path != nullptr ? path : "/etc/sentinel-nvvs-script");
    std::map<std::string, std::string> made;
    for (std::string line; std::getline(file, line);)
    {
        auto const space = line.find(' ');
        if (space != std::string::npos)
            made[line.substr(0, space)] = line.substr(space + 1);
    }
    return made;
}

std::map<std::string, std::vector<dcgmGroupEntityPair_t>> tested;

template <size_t N>
void copy(char (&to)[N], std::string const &text)
{
    std::strncpy(to, text.c_str(), N - 1);
    to[N - 1] = 0;
}

void pass_time(double seconds)
{
    timespec const rest { static_cast<time_t>(seconds), 0 };
    nanosleep(&rest, nullptr); // a signal ends it
}

} // namespace

extern "C" {

#pragma GCC visibility push(default)

unsigned int GetPluginInterfaceVersion(void)
{
    return DCGM_DIAG_PLUGIN_INTERFACE_VERSION;
}

dcgmReturn_t GetPluginInfo(unsigned int, dcgmDiagPluginInfo_t *info)
{
    auto const told = script();
    copy(info->pluginName, "scripted");
    copy(info->description, "answers what a file says");
    info->numTests = 0;
    for (auto const &[name, category] : TESTS)
    {
        if (auto const does = told.find(name); does != told.end() && does->second == "absent")
            continue;
        auto &test = info->tests[info->numTests++];
        copy(test.testName, name);
        copy(test.description, "answers what a file says");
        copy(test.testCategory, category);
        copy(test.validParameters[0].parameterName, "is_allowed");
        test.validParameters[0].parameterType = DcgmPluginParamBool;
        test.numValidParameters               = 1;
        test.targetEntityGroup                = DCGM_FE_GPU;
    }
    return DCGM_ST_OK;
}

dcgmReturn_t InitializePlugin(dcgmHandle_t, dcgmDiagPluginStatFieldIds_t *, void **, DcgmLoggingSeverity_t,
                              hostEngineAppenderCallbackFp_t, dcgmDiagPluginAttr_v1 const *, HangDetectMonitorPtr)
{
    return DCGM_ST_OK;
}

void RunTest(char const *name, unsigned int, unsigned int, dcgmDiagPluginTestParameter_t const *,
             dcgmDiagPluginEntityList_v1 const *list, void *)
{
    for (unsigned int n = 0; n < list->numEntities; n++)
        tested[name].push_back(list->entities[n].entity);
    std::istringstream does(script()[name]);
    std::string what;
    double seconds = 0;
    does >> what >> seconds;
    if (what == "sleep")
        pass_time(seconds);
    while (what == "hang")
    {
        std::signal(SIGTERM, SIG_IGN);
        pass_time(3600);
    }
}

void RetrieveCustomStats(char const *, dcgmDiagCustomStats_t *stats, void *)
{
    stats->moreStats = stats->numStats = 0;
}

void RetrieveResults(char const *name, dcgmDiagEntityResults_v2 *made, void *)
{
    std::istringstream does(script()[name]);
    std::string what, text;
    int gpu = -1, code = 0;
    does >> what >> gpu >> code;
    std::getline(does >> std::ws, text);
    for (auto const &entity : tested[name])
    {
        auto &result  = made->results[made->numResults++];
        result.entity = entity;
        result.result = what == "skip" ? DCGM_DIAG_RESULT_SKIP : DCGM_DIAG_RESULT_PASS;
        if (what != "fail" || static_cast<int>(entity.entityId) != gpu)
            continue;
        result.result  = DCGM_DIAG_RESULT_FAIL;
        auto &error    = made->errors[made->numErrors++];
        error.entity   = entity;
        error.code     = code;
        error.severity = dcgmErrorGetPriorityByCode(code); // nvvs has libdcgm loaded
        error.category = dcgmErrorGetCategoryByCode(code);
        copy(error.msg, text);
    }
}

dcgmReturn_t ShutdownPlugin(void *)
{
    return DCGM_ST_OK;
}

#pragma GCC visibility pop

} // extern "C"
