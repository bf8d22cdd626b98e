// Header that the tests of modules that may use ATen include, precompiled once.
#pragma once

#include <gtest/gtest.h>

#include "torch_pch.h"
